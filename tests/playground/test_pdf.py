"""The whole book on paper: in the order of the table of contents, with a bookmark for each page."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from playground.pdf import BROWSERS, main, pages_in_order, print_pages

ROOT = Path(__file__).parents[2]
PAGE = "<!doctype html><title>{0} — Book</title><h1>{0}</h1><p>On paper.</p>"


def test_the_pages_are_those_of_the_book_in_its_order():
    names = pages_in_order(ROOT)
    assert names[:2] == ["book/index", "book/first_steps/one_device"]
    assert len(names) == len(set(names))


def test_two_pages_are_printed_and_joined(tmp_path):
    pypdf = pytest.importorskip("pypdf")
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no browser on this machine")
    for name in ("one", "two"):
        (tmp_path / f"{name}.html").write_text(PAGE.format(name))
    with ThreadPoolExecutor(1) as thread:  # the tests' own browser may hold this thread's loop
        sheets = thread.submit(print_pages, tmp_path, ["one", "two"], tmp_path / "book.pdf")
    assert sheets.result() == 2
    read = pypdf.PdfReader(tmp_path / "book.pdf")
    assert [item.title for item in read.outline] == ["one", "two"]
    assert "On paper." in read.pages[1].extract_text()


def test_a_book_that_is_not_built_is_an_error_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pdf", "--html", str(tmp_path)])
    with pytest.raises(SystemExit, match="say `make book` first"):
        main()
