"""Pages are executed side by side before the build, which then finds their outputs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from visitor import gone, within

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


@pytest.fixture
def book(tmp_path: Path) -> Path:
    pages = {
        "one": PAGE % MEET % ("one.here", "two.here"),
        "two": PAGE % MEET % ("two.here", "one.here"),
        "wrong": PAGE % "1 / 0",
        "words": "# Words\n",
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    files = [{"file": name} for name in ("one", "two", "wrong")]
    toc = {"root": "words", "parts": [{"caption": "All", "chapters": files}]}
    (tmp_path / "_toc.yml").write_text(str(toc))
    (tmp_path / "_config.yml").write_text("execute: {timeout: 60, allow_errors: false}")
    return tmp_path


def executed(book: Path) -> dict[str, str]:
    """What the cache has: page → what its cell printed."""
    cache = get_cache(book / "_build/.jupyter_cache")
    bundles = {Path(r.uri).stem: cache.get_cache_bundle(r.pk) for r in cache.list_cache_records()}
    return {name: bundle.nb.cells[-1].outputs[0].text for name, bundle in bundles.items()}


def command(book: Path) -> list[str]:
    return [sys.executable, "-m", "playground.execute", "--root", str(book), "--workers", "2"]


def run(book: Path) -> str:
    done = subprocess.run(command(book), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_pages_run_at_the_same_time_and_one_that_fails_is_left_to_the_build(book: Path) -> None:
    said = run(book)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}
    assert "3/3" in said
    assert "wrong failed" in said
    (book / "wrong.md").write_text(PAGE % "print(1)")
    assert "1/1" in run(book), "only what is new"
    assert executed(book) == {"one": "we met\n", "two": "we met\n", "wrong": "1\n"}
    assert run(book) == ""


def test_a_page_that_cannot_even_start_is_left_to_the_build_too(book: Path) -> None:
    (book / "wrong.md").write_text(PAGE.replace("name: python3", "name: nowhere") % "print(1)")
    assert "wrong failed" in run(book)
    assert executed(book) == {"one": "we met\n", "two": "we met\n"}
    assert "No such kernel named nowhere" in (book / "_build/execute.log").read_text()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_stops_the_pages_too(book: Path, stop: signal.Signals) -> None:
    for name in ("one", "two"):
        note = f"import os, pathlib, time; pathlib.Path('{name}.pid').write_text(str(os.getpid()))"
        (book / f"{name}.md").write_text(PAGE % f"{note}\ntime.sleep(600)")
    running = subprocess.Popen(command(book), stderr=subprocess.DEVNULL, start_new_session=True)
    pids = [book / "one.pid", book / "two.pid"]
    assert within(60, lambda: all(pid.exists() and pid.read_text() for pid in pids))
    os.killpg(running.pid, stop)
    assert running.wait(60) == 1
    assert within(60, lambda: all(gone(int(pid.read_text())) for pid in pids))
