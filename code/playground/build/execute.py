"""Execute pages, several at a time. `make book` does this for stale pages, `make outputs` records.

    python -m playground.build.execute                        stale pages, for this build only
    python -m playground.build.execute --record               and into book/outputs (each twice)
    python -m playground.build.execute --record --pages all   every page again
    python -m playground.build.execute --check --pages all    compare with the recorded outputs
    … --check --note --pages all    mark the cells that differ as measuring: look at them first

The number of pages at a time is half the number of cores. Most pages start several ranks, and
measurements would include the time that these wait for each other. A check ignores times, so it
uses all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from playground.build.digest import ROOT, cells_of, digest
from playground.build.outputs import (
    Record,
    computed,
    differences,
    digest_in,
    fresh,
    has_cells,
    kept,
    load,
    merged,
    recorded,
    said,
    save,
    stale,
)
from playground.build.pieces import read_page
from playground.build.toc import pages_in_order
from playground.server.start import at_start, importing, transport

LOG = "_build/execute.log"
ANSI = re.compile(r"\x1b\[[\d;]*m")
CLOCK = re.compile(r"\bperf_counter\b|\btimeit\b|\.seconds\(")  # in a cell that measures


class PageError(Exception):
    """A page can't be executed; the message names the cell and the reason."""


async def execute(root: Path, name: str, stamp: dict[str, str]) -> Record:
    """Run the cells of a page in a new kernel. Raises PageError."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, CellExecutionError
    from traitlets.config import Config

    page = root / f"{name}.md"
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["execute"]
    notebook, before = read_page(page), digest(page)
    # Pages give their language at the top. A kernel with pytest's variable belongs to a test.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environ["KINETO_LOG_LEVEL"] = "99"  # PyTorch's profiler would print the time and its process
    modules = ["shutdown"] + ["warm"] * ("distributed" in cells_of(page))
    os.environ.pop("JUPYTER_PATH", None)  # `python3` must be the kernel of this Python
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    try:
        with tempfile.TemporaryDirectory(prefix="book-") as folder:
            connection = {
                "connection_file": f"{folder}/kernel.json",
                "transport": transport(Path(folder)),
            }
            environ["IPYTHONDIR"] = f"{folder}/ipython"  # the reader's own is for other kernels
            client = NotebookClient(
                notebook,
                config=Config(KernelManager=connection),
                timeout=settings["timeout"],
                coalesce_streams=True,  # a kernel sends lines in pieces of random size
                extra_arguments=at_start(*map(importing, modules)),
                resources={"metadata": {"path": str(page.parent)}},
            )
            await client.async_execute(env=environ)
    except CellExecutionError as error:
        raise PageError(ANSI.sub("", str(error))) from None
    except (CellControlSignal, Exception) as error:  # no kernel, or it died, or took too long
        raise PageError(f"{type(error).__name__}: {error}") from error
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, start=1):
        meant = "raises-exception" in cell.metadata.get("tags", [])
        failed = [o for o in cell.outputs if o.output_type == "error"]
        if meant and not failed:
            raise PageError(f"code cell {number} has the tag raises-exception, but it didn't fail")
    record = [
        {"outputs": [kept(o) for o in cell.outputs], "varies": bool(CLOCK.search(cell.source))}
        for cell in cells
    ]
    return {"digest": before, "stamp": stamp, "cells": record}


def stamp() -> dict[str, str]:
    """Machine, versions and date for the outputs that are made now."""
    from playground.environment import environment

    env = environment()
    machine = env["gpu"] or f"{env['cores']} cores of {env['cpu']}"
    return {"machine": machine, **{k: env[k] for k in ("python", "torch", "date", "commit")}}


async def run_all(root: Path, names: list[str], workers: int, done: Any) -> dict[str, str]:
    """Execute these pages; calls `done(name, record)` for each. Returns page → error for those
    that fail."""
    wrong: dict[str, str] = {}
    here, turn = stamp(), asyncio.Semaphore(workers)
    progress = tqdm(desc="Executing pages", total=len(names), unit="page")

    async def run(name: str) -> None:
        async with turn:
            try:
                done(name, await execute(root, name, here))
                progress.set_postfix_str(name)
            except PageError as error:
                *text, last = str(error).strip().splitlines()
                wrong[name] = f"ERROR: {name}.md: {last}"
                with (root / LOG).open("a", encoding="utf-8") as log:
                    print(f"--- {name}", *text, last, sep="\n", file=log)
            progress.update()

    await asyncio.gather(*map(run, names))
    progress.close()
    return wrong


# --- what to do with the new record of a page ---


def keep_for_build(root: Path, name: str, record: Record) -> None:
    save(computed(root, name), record)


def keep_for_all(root: Path, name: str, record: Record) -> None:
    """Record the outputs. Cells that differ from an earlier record of the same code vary."""
    path = recorded(root, name)
    if digest_in(path) == record["digest"]:
        old = load(path)
        record = merged(old, record)
        if all(a == b for a, b in zip(old["cells"], record["cells"], strict=True)):
            return
    elif path.exists():
        record = merged(load(path), record, same_code=False)
    save(path, record)
    computed(root, name).unlink(missing_ok=True)


class Check:
    """Cells whose outputs differ from the recorded ones; stale pages are skipped."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: dict[str, Record] = {}  # of the pages that differ
        self.cells: dict[str, set[int]] = {}  # the numbers (from 0) of their cells that differ

    def __call__(self, name: str, record: Record) -> None:
        """Compare a page. In a second run, keep only cells that differed in both runs."""
        path = recorded(self.root, name)
        found = set[int]()
        if digest_in(path) == record["digest"]:
            found = set(differences(load(path), record)) & self.cells.get(name, {*range(10**6)})
        self.cells.pop(name, None)
        if found:
            self.records[name], self.cells[name] = record, found

    def report(self) -> list[str]:
        """Recorded and new outputs of these cells."""
        return [
            f"{name}.md, code cell {number + 1}: the recorded output is\n"
            f"{_of(load(recorded(self.root, name)), number)}\nand the new output is\n"
            f"{_of(self.records[name], number)}"
            for name, numbers in self.cells.items()
            for number in sorted(numbers)
        ]

    def note(self) -> None:
        """Mark these cells in the recorded outputs as varying."""
        for name, numbers in self.cells.items():
            old = load(recorded(self.root, name))
            for number in numbers:
                old["cells"][number]["varies"] = True
            save(recorded(self.root, name), old)


def _of(record: Record, number: int) -> str:
    return said(record["cells"][number]["outputs"]) if number < len(record["cells"]) else ""


def scripts_on_no_page(root: Path, names: list[str]) -> list[Path]:
    """Modules with a demonstration that no page runs whole; commands of packages don't count."""
    cells = "\n".join(cells_of(root / f"{name}.md") for name in names)
    modules = sorted((root / "code/distributed").rglob("[!_]*.py"))
    shows = [path for path in modules if 'if __name__ == "__main__"' in path.read_text()]
    return [path for path in shows if not re.search(rf"^:?load: .*/{path.name}$", cells, re.M)]


def run_script(path: Path) -> list[str]:
    """Run a module as a script in an empty folder; returns errors."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [f"ERROR: {path.name}: {done.stderr.strip()}"] if done.returncode else []


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m playground.build.execute", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="folder with _toc.yml (default: this repository)"
    )
    workers = "number of pages at a time (default: half of the cores; with --check, all)"
    parser.add_argument("--workers", type=int, help=workers)
    pages = "stale, all, or names with commas, such as book/ddp/overlap (default: stale)"
    parser.add_argument("--pages", default="stale", help=pages)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--record", action="store_true", help="keep the outputs in book/outputs, not in _build"
    )
    what.add_argument(
        "--check", action="store_true", help="only compare the outputs with the recorded ones"
    )
    note = "with --check: mark cells with different outputs as cells that measure"
    parser.add_argument("--note", action="store_true", help=note)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    root = options.root.resolve()
    cores = os.cpu_count() or 2
    workers = options.workers or (cores if options.check else max(1, cores // 2))
    pages, live = pages_in_order(root), live_pages(root)
    if options.pages == "stale":
        names = not_recorded(root, live) if options.record or options.check else stale(root, pages)
    elif options.pages == "all":
        names = live
    else:
        names = options.pages.split(",")
        if unknown := [name for name in names if name not in live]:
            parser.exit(2, f"--pages {unknown[0]}: isn't a page of _toc.yml with cells\n")
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: os._exit(1))  # a kernel ends when its parent has ended
    if not names:
        return
    (root / "_build").mkdir(exist_ok=True)
    (root / LOG).unlink(missing_ok=True)
    check = Check(root)

    def done(name: str, record: Record) -> None:
        if options.check:
            check(name, record)
        elif options.record:
            keep_for_all(root, name, record)
        else:
            keep_for_build(root, name, record)

    if not options.check:
        print(f"Pages to execute: {', '.join(Path(name).name for name in names)}", flush=True)
    with ThreadPoolExecutor(1) as aside:  # in the main thread nbclient would handle the signals
        new = set(not_recorded(root, names)) if options.record else set()
        failed = aside.submit(asyncio.run, run_all(root, names, workers, done)).result()
        if twice := [name for name in names if name in new and name not in failed]:
            # If two runs of the same code have different outputs, the cell measures something.
            failed |= aside.submit(asyncio.run, run_all(root, twice, workers, done)).result()
        again = [*failed, *check.cells]
        if options.check and again and not options.note:  # a bug shows every time
            print(
                *failed.values(),
                f"Running again, in case it was chance: {', '.join(again)}",
                sep="\n",
                flush=True,
            )
            failed = aside.submit(asyncio.run, run_all(root, again, 1, done)).result()
    wrong = [*failed.values()]
    different = check.report()
    if options.note:
        check.note()
    if options.check and options.pages == "all":
        scripts = scripts_on_no_page(root, live)
        for path in tqdm(scripts, "Running modules"):
            wrong += run_script(path)
        summary(root, names, scripts, different)
    if options.check and (old := not_recorded(root, names)):
        print(f"Not compared, because stale: {', '.join(old)}. Record them with `make outputs`.")
    if different or wrong:
        print(*different, *wrong, sep="\n", file=sys.stderr)
        sys.exit(f"(details: {LOG})" if wrong else 1)


def live_pages(root: Path) -> list[str]:
    return [name for name in pages_in_order(root) if has_cells(root / f"{name}.md")]


def not_recorded(root: Path, names: list[str]) -> list[str]:
    """Pages whose recorded outputs belong to different code than they have now."""
    return [name for name in names if fresh(root, name) != recorded(root, name)]


def summary(root: Path, names: list[str], scripts: list[Path], different: list[str]) -> None:
    old = not_recorded(root, names)
    varying = sum(
        cell["varies"] for n in names if n not in old for cell in load(recorded(root, n))["cells"]
    )
    print(
        f"{len(names)} pages and {len(scripts)} more modules ran; {len(different)} cells have "
        f"outputs that differ from the record ({varying} cells measure: only their form counts)"
    )


if __name__ == "__main__":
    main()
