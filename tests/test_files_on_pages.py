"""What a page offers to be copied runs as a file of its own, on ranks that have different data.

Three rules, and every cell of `In PyTorch` follows one of them:

- A cell with the tag `file` is a whole file, and so is a listing in Python there. Cells with the
  tag `part` are the beginning of the file that comes next. If a file defines `main`, it ends in
  `main()` and is for torchrun, with as many ranks as the page has it run with:
  `torchrun(main, ranks=4)` in the cell that comes next. The others need one process; with the tag
  `slow` they start others themselves.
- A cell with the tag `holds`, which the page does not show, says what came of the file before it:
  `results` is what `main` returned on each rank, and `alone` what it did on one, if the page asks.
- Any other cell that a reader sees there only runs what stands above it: it imports no torch and
  defines nothing.

The ranks here are warm ones that leave one group and make the next, as torchrun would have them
do: a file in its own namespace, with its own environment. In slow tests torchrun starts each.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from distributed import Group, launch
from playground.build.toc import pages_in_order
from playground.lab.one_host import loopback_store

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / f"{page}.md" for page in pages_in_order(ROOT)]
CELL = re.compile(r"^```(?:\{code-cell\} )?python\n((?:---\n[\s\S]*?\n---\n)?)([\s\S]*?)^```", re.M)
TAGS = re.compile(r"^:?tags: *\[(.*)\]\n", re.M)
OPTION = re.compile(r"\A(?::.*\n)+")
RANKS = re.compile(r"\btorchrun\(main(?:, (?:(?!torchrun).)*?)??, ranks=(\d+)")
PATIENCE = 600  # s; long, because a slow machine is not a failure
# `main` leaves no model behind: that can hang. And who left at once would close connections that
# others still make.
END = "\n\nmain()\ndist.barrier()\ndist.destroy_process_group()\n"
TO_COPY = re.compile(r"^(?:import|from) torch\b|^(?:def|class) ", re.M)


class Cell(NamedTuple):
    page: str
    line: int
    source: str
    tags: set[str]
    in_pytorch: bool
    is_live: bool

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shown(self) -> bool:
        return not self.tags & {"remove-cell", "remove-input", "hide-cell", "hide-input"}

    @property
    def is_file(self) -> bool:
        return "file" in self.tags or (self.in_pytorch and not self.is_live)


def cells_of(page: Path) -> list[Cell]:
    found, text = [], page.read_text()
    for match in CELL.finditer(text):
        headings = re.findall(r"^## (.*)$", text[: match.start()], re.M)
        options = match[1] + "".join(OPTION.findall(match[2]))
        tags = {tag.strip() for tag in ",".join(TAGS.findall(options)).split(",")}
        found.append(
            Cell(
                str(page.relative_to(ROOT / "book")).removesuffix(".md"),
                text[: match.start()].count("\n") + 1,
                OPTION.sub("", match[2]),
                tags,
                headings[-1:] == ["In PyTorch"],
                match[0].startswith("```{code-cell}"),
            )
        )
    return found


class File(NamedTuple):
    """A cell that is a file, on how many ranks it runs, and what holds then."""

    cell: Cell
    counts: tuple[int, ...]  # the page's, the first for `results`; none: it needs no torchrun
    holds: str

    @property
    def text(self) -> str:
        return self.cell.source + END * bool(self.counts)


def files_of(cells: list[Cell]) -> list[File]:
    found, parts = [], []
    for number, cell in enumerate(cells):
        if "part" in cell.tags:
            parts.append(cell.source)
        if not cell.is_file:
            continue
        cell = cell._replace(source="\n\n".join([*parts, cell.source]))
        parts = []
        after = next((n for n, c in enumerate(cells) if n > number and c.is_file), len(cells))
        later, counts = cells[number + 1 : after], ()
        if re.search(r"^def main\(", cell.source, re.M):
            counts = tuple(map(int, RANKS.findall("\n".join(c.source for c in later))))
            assert counts, f"{cell.name}: with how many ranks?"
        holds = "\n".join(c.source for c in later if "holds" in c.tags)
        found.append(File(cell, counts, holds))
    assert not parts, "no file follows these parts"
    return found


EVERY = [cells_of(page) for page in PAGES]
FILES = [file for cells in EVERY for file in files_of(cells)]
IN_RANKS = [file for file in FILES if file.counts]
RUNS = [(file, ranks) for file in IN_RANKS for ranks in file.counts]
LOOK = "test_a_file_runs_by_itself_and_does_what_its_page_says"


# Forty steps of `fully_shard` on four ranks each, as the page of ZeRO-3 has them, too.
COSTLY = ("zero/hsdp", "zero/zero2")


def as_parameter(file: File) -> object:
    is_slow = "slow" in file.cell.tags or file.cell.page in COSTLY
    marks = pytest.mark.slow if is_slow else ()
    return pytest.param(file, marks=marks, id=file.cell.name)


def run_files(
    group: Group, files: list[tuple[str, str, int]], ports: list[int], folder: str
) -> list[Any]:
    """One rank: run these files one after the other, each as torchrun would start it."""
    ranks = group.size
    os.chdir(folder)
    between = dist.TCPStore("127.0.0.1", ports.pop(), is_master=False)
    dist.barrier()
    dist.destroy_process_group()
    results: list[Any] = []
    for (name, text, wanted), port in zip(files, ports, strict=True):
        results.append(None)
        if group.rank < wanted:
            rank, size = str(group.rank), str(wanted)
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            os.environ |= {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
            os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            torch.manual_seed(1000 + group.rank)  # what is drawn without a seed differs
            namespace: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(text, name, "exec"), namespace)
            results[-1] = namespace["main"]()
        if between.add(f"{name} on {wanted}", 1) == ranks:
            between.set(f"{name} on {wanted} is done", "")
        between.wait([f"{name} on {wanted} is done"])  # one that left would close connections
        if dist.is_initialized():
            dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], list[Any]]:
    """What `main` of each file that is to be looked at returned, on each of so many ranks."""
    wanted = {item.name for item in request.session.items}
    runs = [run for run in RUNS if f"{LOOK}[{run[0].cell.name}]" in wanted]
    stores = [loopback_store() for _ in (*runs, "between runs")]
    files = [(file.cell.name, file.cell.source, ranks) for file, ranks in runs]
    most, folder = max(ranks for _, ranks in runs), str(tmp_path_factory.mktemp("copied"))
    given = files, [store.port for store in stores], folder
    of_ranks = launch(run_files, *given, ranks=most, device="cpu", timeout=PATIENCE)
    return {
        (file.cell.name, ranks): [of_one[number] for of_one in of_ranks[:ranks]]
        for number, (file, ranks) in enumerate(runs)
    }


@pytest.mark.parametrize("file", [as_parameter(file) for file in FILES])
def test_a_file_runs_by_itself_and_does_what_its_page_says(
    file: File, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    if file.counts:
        came = request.getfixturevalue("results")
        names["results"] = came[file.cell.name, file.counts[0]]
        names["alone"] = came.get((file.cell.name, 1))
    else:
        monkeypatch.chdir(tmp_path)
        exec(compile(file.text, file.cell.name, "exec"), names)
    exec(compile(file.holds, file.cell.name, "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("file", IN_RANKS, ids=lambda file: file.cell.name)
def test_torchrun_starts_it(file: File, tmp_path: Path) -> None:
    (tmp_path / "copied.py").write_text(file.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(file.counts[0]), "copied.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cells", EVERY, ids=[str(page.stem) for page in PAGES])
def test_what_a_reader_could_copy_is_marked_as_a_file(cells: list[Cell]) -> None:
    for cell in cells:
        if cell.in_pytorch and cell.is_shown and not (cell.is_file or "part" in cell.tags):
            assert not TO_COPY.search(cell.source), f"{cell.name}: a file?\n{cell.source}"
