"""`make serve` for the first time: pages at once, their outputs when they are computed."""

import http.cookiejar
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from test_builds import CELLS, Book

SERVE = """
import sys
from pathlib import Path
from playground import serve
serve.ROOT, serve.FEW = Path.cwd(), 0
serve.BOOK = [sys.executable, "-m", "playground.build"]
sys.argv = ["serve", "--port", "0", "--no-browser"]
serve.main()
"""
SLOW = CELLS.replace("print(6", "import time\ntime.sleep(4)\nprint(6")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    (tmp_path / "book").mkdir()
    book = Book(tmp_path / "book")
    (book.folder / "_build").mkdir()
    return book


@pytest.fixture
def start(book: Book) -> Iterator[Callable[[], "Started"]]:
    """`start()` is `make serve`; what is still there at the end is ended, as Ctrl-C would."""
    all_started = []

    def start() -> Started:
        all_started.append(Started(book))
        return all_started[-1]

    yield start
    for started in all_started:
        started.process.terminate()
        started.process.wait(60)


class Started:
    """`make serve` in a small book, and a reader of it."""

    def __init__(self, book: Book):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE], cwd=book.folder, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = []
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith("Open"):
                break
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.reader = urllib.request.build_opener(cookies)
        if self.said[-1].startswith("Open"):
            self.reader.open(self.said[-1].split()[1], timeout=20)

    def get(self, path: str) -> str:
        with self.reader.open(self.said[-1].split()[1].split("?")[0] + path, timeout=20) as page:
            return str(page.read().decode())

    def wait_for(self, path: str, words: str) -> str:
        until = time.monotonic() + 120
        while words not in (text := self.get(path)) and time.monotonic() < until:
            time.sleep(0.1)
        assert words in text
        return text


def test_cells_are_live_before_their_outputs_are_there(
    book: Book, start: Callable[[], Started]
) -> None:
    (book.folder / "cells.md").write_text(SLOW)
    started = start()
    children = psutil.Process(started.process.pid).children(recursive=True)
    assert started.said[0] == "Building the book ..."
    assert "of 1 pages are done" in started.get("_static/builds.txt")
    first = started.get("cells.html")
    assert "data-live" in first
    assert "reload.js" in first
    assert "42" not in first
    assert ">not run yet<" in first
    then = started.wait_for("cells.html", "42")
    assert "reload.js" not in then, "what is complete waits for nothing"
    assert ">built<" in then
    started.process.terminate()
    assert started.process.wait(60) == 0
    assert not (book.folder / "_build/first").exists()
    assert not [child for child in children if child.is_running()]


def test_a_page_that_cannot_be_executed_leaves_the_book_up_and_says_so(
    book: Book, start: Callable[[], Started]
) -> None:
    (book.folder / "cells.md").write_text(CELLS.replace("6 * 7", "6 / 0"))
    started = start()
    started.wait_for("_static/builds.txt", "Not all outputs could be computed")
    assert "data-live" in started.get("cells.html")
    started.process.terminate()
    assert started.process.wait(60) == 0


def test_a_book_that_does_not_build_is_not_served(book: Book, start: Callable[[], Started]) -> None:
    (book.folder / "index.md").write_text("# Book\n\n{doc}`nowhere`\n")
    started = start()
    assert not started.said[-1].startswith("Open")
    assert started.process.wait(60) != 0
