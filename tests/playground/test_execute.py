"""Pages are executed side by side before the build, which shows what came of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import soon

from playground.build import outputs
from playground.server.limits import has_ended

PAGE = """---
kernelspec: {name: python3, display_name: Python 3}
---
# A page

```{code-cell} python
%s
```
"""
MEET = """
import pathlib, time
pathlib.Path("%s").touch()
while not pathlib.Path("%s").exists():
    time.sleep(0.01)
print("we met")"""
PIECES = """
import sys, time
for piece in "%s", " in", " one", " line":
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.3)
print()"""


CONFIG = "execute: {timeout: 60, allow_errors: false}"
LOG = "_build/execute.log"
PAGES = ("measures", "says")
CHECK = ("--check", "--pages", "all")


def write_pages(book: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        (book / f"{name}.md").write_text(text)
    (book / "words.md").write_text("# Words\n")
    files = [{"file": name} for name in pages]
    toc = {"root": "words", "parts": [{"caption": "All", "chapters": files}]}
    (book / "_toc.yml").write_text(str(toc))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "_config.yml").write_text(CONFIG)
    pages = {
        "one": PAGE % MEET % ("one.here", "two.here"),
        "two": PAGE % MEET % ("two.here", "one.here"),
        "wrong": PAGE % "1 / 0",
    }
    write_pages(tmp_path, pages)
    return tmp_path


def text_of(file: Path) -> str:
    """What the last cell of a page printed."""
    return "".join(outputs.load(file)["cells"][-1]["outputs"][0]["text"])


def executed(book: Path) -> dict[str, str]:
    """What a build would show: page → what its cell printed."""
    names = [page.stem for page in book.glob("*.md")]
    files = {name: outputs.fresh(book, name) for name in names}
    return {name: text_of(file) for name, file in files.items() if file}


def command(book: Path, *options: str) -> list[str]:
    module = [sys.executable, "-m", "playground.build.execute"]
    return [*module, "--root", str(book), "--workers", "2", *options]


def run(book: Path, *options: str, fails: bool = False) -> str:
    done = subprocess.run(
        command(book, *options), capture_output=True, text=True, check=False, timeout=300
    )
    assert bool(done.returncode) == fails, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_pages_run_at_the_same_time_and_one_that_fails_is_named(book: Path) -> None:
    said = run(book, fails=True)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}, (book / LOG).read_text()
    assert "ERROR: wrong.md: ZeroDivisionError: division by zero" in said
    (book / "wrong.md").write_text(PAGE % "print(1)")
    assert "Pages to execute: wrong\n" in run(book), "only what is stale"
    assert executed(book) == {"one": "we met\n", "two": "we met\n", "wrong": "1\n"}
    assert run(book) == ""


@pytest.mark.slow
def test_a_page_that_cannot_even_start_is_named_too(book: Path) -> None:
    (book / "wrong.md").write_text(PAGE.replace("name: python3", "name: nowhere") % "print(1)")
    assert "No such kernel named nowhere" in run(book, fails=True)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}, (book / LOG).read_text()


def test_a_cell_that_is_there_to_fail_and_does_not_is_an_error(book: Path) -> None:
    write_pages(book, {"one": PAGE % ":tags: [raises-exception]\nprint(1)"})
    assert "code cell 1 has the tag raises-exception, but it didn't fail" in run(book, fails=True)


@pytest.mark.slow
def test_a_line_that_a_kernel_sends_in_pieces_is_kept_whole(book: Path) -> None:
    write_pages(book, {name: PAGE % PIECES % name for name in ("one", "two")})
    run(book)
    assert executed(book) == {name: f"{name} in one line\n" for name in ("one", "two")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="a socket's path is too long: it has ports")
def test_a_page_waits_for_no_port_that_another_program_could_take(book: Path) -> None:
    code = "import ipykernel.connect as c\nprint(c.get_connection_info(unpack=True)['transport'])"
    write_pages(book, {"one": PAGE % code})
    run(book)
    assert executed(book) == {"one": "ipc\n"}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_stops_the_pages_too(book: Path, stop: signal.Signals) -> None:
    for name in ("one", "two"):
        note = f"import os, pathlib, time; pathlib.Path('{name}.pid').write_text(str(os.getpid()))"
        (book / f"{name}.md").write_text(PAGE % f"{note}\ntime.sleep(600)")
    running = subprocess.Popen(command(book), stderr=subprocess.DEVNULL, start_new_session=True)
    pids = [book / "one.pid", book / "two.pid"]
    assert soon(lambda: all(pid.exists() and pid.read_text() for pid in pids))
    os.killpg(running.pid, stop)
    assert running.wait(60) == 1
    assert soon(lambda: all(has_ended(int(pid.read_text())) for pid in pids))


# --- what is recorded ---

MEASURES = "import time\nprint('it took', time.time_ns(), 'of them')"
SAYS = "print('two and two is', 4, 'in 0.3 ms')"


@pytest.fixture(scope="module")
def recorded_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    book = tmp_path_factory.mktemp("recorded")
    (book / "_config.yml").write_text(CONFIG)
    write_pages(book, {"measures": PAGE % MEASURES, "says": PAGE % SAYS})
    run(book, "--record")  # each page twice: so it is known what varies
    return book


@pytest.fixture
def recorded(recorded_twice: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded_twice, tmp_path / "book"))


@pytest.mark.slow
def test_recording_again_changes_nothing_of_a_page_that_does_not_measure(recorded: Path) -> None:
    files = {name: outputs.recorded(recorded, name) for name in PAGES}
    before = {name: file.read_text() for name, file in files.items()}
    run(recorded, "--record", "--pages", "all")
    assert files["says"].read_text() == before["says"]
    assert files["measures"].read_text() != before["measures"]
    assert outputs.load(files["measures"])["cells"][0]["varies"]
    assert run(recorded, "--record") == "", "nothing is stale"
    assert not outputs.computed(recorded, "says").exists()


@pytest.mark.slow
def test_a_check_runs_all_and_names_what_says_something_else(recorded: Path) -> None:
    file = outputs.recorded(recorded, "says")
    file.write_text(file.read_text().replace("0.3 ms", "0.4 ms"))
    assert "2 pages and 0 more modules ran; 0 cells have" in run(recorded, *CHECK)
    file.write_text(file.read_text().replace("is 4", "is 5"))
    said = run(recorded, *CHECK, fails=True)
    assert "says.md, code cell 1: the recorded output is\ntwo and two is 5 in 0.4 ms" in said
    assert "and the new output is\ntwo and two is 4 in 0.3 ms" in said


@pytest.mark.slow
def test_a_cell_of_which_it_is_noted_that_it_measures_may_say_anything(recorded: Path) -> None:
    file = outputs.recorded(recorded, "says")
    file.write_text(file.read_text().replace("is 4", "is 5"))
    assert "says.md, code cell 1" in run(recorded, *CHECK, "--note", fails=True)
    assert "is 5" in text_of(file), "the outputs stay"
    run(recorded, *CHECK)


def test_a_stale_page_is_executed_for_the_build_and_its_record_waits(recorded: Path) -> None:
    (recorded / "says.md").write_text(PAGE % "print(5)")
    assert outputs.stale(recorded, [*PAGES]) == ["says"]
    run(recorded)
    assert executed(recorded)["says"] == "5\n"
    assert "4" in text_of(outputs.recorded(recorded, "says"))
    assert "Not compared, because stale: says" in run(recorded, *CHECK)
    assert "Not compared, because stale: says" in run(recorded, "--check", "--pages", "says")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("loss 0.1234567 after 3 steps", "loss 0.1234568 after 3 steps", True),
        ("loss 0.1234 after 3 steps", "loss 0.1334 after 3 steps", False),
        ("loss 0.1 after 3 steps", "loss 0.1 after 4 steps", False),
        ("an error of 3e-08", "an error of 7e-09", True),
        ("an error of 9e−16", "an error of 6e−16", True),
        ("in 3 ms at 2.1 GB/s", "in 14 ms at 0.9 GB/s", True),
        ("loss 2.5 · 8,907 tokens/s", "loss 2.5 · 6,435 tokens/s", True),
        ("loss 2.5 · 8,907 tokens/s", "loss 2.6 · 8,907 tokens/s", False),
        ("3 messages", "4 messages", False),
        ("1,000 bytes", "1,001 bytes", False),
        ("the ring wins", "the tree wins", False),
        ("commit 70e536e", "commit 70e536e", True),  # as a number it would be infinite
        ("[rank 0] 4\n[rank 1] 5\n", "[rank 1] 5\n[rank 0] 4\n", True),
        ("[rank 0] 4\n[rank 1] 5\n", "[rank 0] 5\n[rank 1] 4\n", False),
    ],
)
def test_words_and_numbers_agree_but_for_rounding_times_and_speeds(one, other, same):
    a, b = ([{"output_type": "stream", "name": "stdout", "text": [t]}] for t in (one, other))
    assert outputs.agree(a, b) is same


def test_of_ranks_that_all_fail_either_may_be_the_first() -> None:
    def raised(rank: int, kind: str, why: str) -> list[outputs.Output]:
        said = f"rank {rank} raised {kind}: {why}\n  at Cell In[7], line {14 + rank}, in main: x"
        return [{"output_type": "error", "ename": "RankError", "evalue": said, "traceback": []}]

    one = raised(1, "RuntimeError", "1 calls broadcast and 0 all_reduce")
    assert outputs.agree(one, raised(0, "RuntimeError", "0 calls all_reduce and 1 broadcast"))
    assert not outputs.agree(one, raised(0, "ValueError", "1 calls broadcast and 0 all_reduce"))
    assert not outputs.agree(one, raised(1, "RuntimeError", "1 calls scatter and 0 all_reduce"))


def test_what_is_of_this_process_and_this_machine_alone_is_not_kept() -> None:
    files = f"{outputs.ROOT}/code/a.py, /tmp/ipykernel_12/345.py, /tmp/tmpa1b2c3d4/x"
    text = f"<f at 0x7f12345678> in {files}"
    stream = {"output_type": "stream", "name": "stdout", "text": text}
    assert outputs.whole(outputs.kept(stream)) == stream | {
        "text": "<f at 0x…> in code/a.py, /tmp/cell.py, /tmp/…/x"
    }


def record_of(*cells: tuple[str, bool]) -> outputs.Record:
    """A page of cells that printed these lines, and whether they are known to vary."""
    printed = [
        {"outputs": [{"output_type": "stream", "name": "stdout", "text": [text]}], "varies": varies}
        for text, varies in cells
    ]
    return {"digest": "", "stamp": {}, "cells": printed}


def varying(record: outputs.Record) -> list[bool]:
    return [cell["varies"] for cell in record["cells"]]


def test_a_cell_that_measures_is_known_even_if_one_run_agrees_with_the_last() -> None:
    old = record_of(("best: 1 MiB", True), ("ranks: 4", False))
    new = record_of(("best: 1 MiB", False), ("ranks: 5", False))
    assert varying(outputs.merged(old, new, same_code=False)) == [True, False]


def test_a_cell_that_measures_is_known_when_cells_come_or_go_around_it() -> None:
    old = record_of(("ranks: 4", False), ("best: 1 MiB", True), ("sent: 2", False))
    new = record_of(("ranks: 4", False), ("a new cell", False), ("best: 8 MiB", False))
    assert varying(outputs.merged(old, new, same_code=False)) == [False, False, True]


def test_a_cell_that_is_gone_leaves_no_note_to_its_neighbor() -> None:
    old = record_of(("best: 1 MiB", True), ("ranks: 4", False))
    new = record_of(("ranks: 4", False))
    assert varying(outputs.merged(old, new, same_code=False)) == [False]


def test_a_record_has_a_line_for_each_cell_so_that_a_diff_can_be_read(tmp_path):
    cells = [
        {"varies": False, "outputs": [{"text": ["a\n", "b\n"]}]},
        {"varies": True, "outputs": []},
    ]
    record = {"stamp": {"cpu": "x"}, "digest": "0a1b", "cells": cells}
    outputs.save(tmp_path / "page.json", record)
    lines = (tmp_path / "page.json").read_text().splitlines()
    assert [json.loads(line.rstrip(",")) for line in lines[1:3]] == cells
    assert outputs.load(tmp_path / "page.json") == record
    assert outputs.digest_in(tmp_path / "page.json") == "0a1b"
