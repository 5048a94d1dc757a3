"""Pages are executed side by side before the build, which then finds their outputs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from visitor import gone, soon

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


LOG = "_build/execute.log"


def write_pages(book: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        (book / f"{name}.md").write_text(text)
    (book / "words.md").write_text("# Words\n")
    files = [{"file": name} for name in pages]
    toc = {"root": "words", "parts": [{"caption": "All", "chapters": files}]}
    (book / "_toc.yml").write_text(str(toc))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "_config.yml").write_text("execute: {timeout: 60, allow_errors: false}")
    pages = {
        "one": PAGE % MEET % ("one.here", "two.here"),
        "two": PAGE % MEET % ("two.here", "one.here"),
        "wrong": PAGE % "1 / 0",
    }
    write_pages(tmp_path, pages)
    return tmp_path


def executed(book: Path) -> dict[str, str]:
    """What the cache has: page → what its cell printed."""
    cache = get_cache(book / "_build/.jupyter_cache")
    bundles = {Path(r.uri).stem: cache.get_cache_bundle(r.pk) for r in cache.list_cache_records()}
    return {name: bundle.nb.cells[-1].outputs[0].text for name, bundle in bundles.items()}


def command(book: Path, workers: int = 2) -> list[str]:
    module = [sys.executable, "-m", "playground.build.execute"]
    return [*module, "--root", str(book), "--workers", str(workers)]


def run(book: Path, workers: int = 2) -> str:
    done = subprocess.run(command(book, workers), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_pages_run_at_the_same_time_and_one_that_fails_is_left_to_the_build(book: Path) -> None:
    said = run(book)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}, (book / LOG).read_text()
    assert "3/3" in said
    assert "wrong failed" in said
    (book / "wrong.md").write_text(PAGE % "print(1)")
    assert "1/1" in run(book), "only what is new"
    assert executed(book) == {"one": "we met\n", "two": "we met\n", "wrong": "1\n"}
    assert run(book) == ""


def test_a_page_that_cannot_even_start_is_left_to_the_build_too(book: Path) -> None:
    (book / "wrong.md").write_text(PAGE.replace("name: python3", "name: nowhere") % "print(1)")
    assert "wrong failed" in run(book)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}, (book / LOG).read_text()
    assert "No such kernel named nowhere" in (book / LOG).read_text()


def test_many_pages_that_end_at_once_are_all_kept(book: Path) -> None:
    """When each worker kept its own page, one removed now and then what another had just added."""
    names, end = [f"page_{i}" for i in range(6)], time.time() + 12
    wait = f"import time\nwhile time.time() < {end}: time.sleep(0.001)\nprint('%s')"
    write_pages(book, {name: PAGE % wait % name for name in names})
    run(book, workers=6)
    assert executed(book) == {name: f"{name}\n" for name in names}, (book / LOG).read_text()


def test_a_line_that_a_kernel_sends_in_pieces_is_kept_whole(book: Path) -> None:
    write_pages(book, {name: PAGE % PIECES % name for name in ("one", "two")})
    run(book)
    assert executed(book) == {name: f"{name} in one line\n" for name in ("one", "two")}


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
    assert soon(lambda: all(gone(int(pid.read_text())) for pid in pids))
