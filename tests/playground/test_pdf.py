"""The whole book on paper: in the order of the table of contents, with a bookmark for each page."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from playground.build.pdf import find_browser, main, missing, pages_in_order, print_pages

ROOT = Path(__file__).parents[2]
LISTING = "\n".join(f"line {number} of a long listing" for number in range(1, 151))
PAGE = f"""<!doctype html><title>{{0}} — Book</title><link rel="stylesheet" href="book.css">
<article class="bd-article"><h1>{{0}}</h1><p>On paper. <a href="#idea">The idea</a>
<a href="{{1}}.html">other</a> <a href="genindex.html">index</a> <a href="https://arxiv.org">far</a>
<div class="live-bar"><button>Run</button></div>
<div class="exercise-progress"><label>Exercises: <meter></meter></label></div>
<details class="hide"><summary>Show code</summary><pre>folded away</pre></details>
<div class="cell_input" style="overflow: auto"><div class="highlight-x" style="break-inside: avoid">
<div class="highlight"><pre>{LISTING}</pre></div></div></div>
<h2 id="idea">The idea</h2><p class="live-downloads">Take this page along</p></article>"""


def test_the_pages_are_those_of_the_book_in_its_order():
    names = pages_in_order(ROOT)
    assert names[:2] == ["book/index", "book/first_steps/one_device"]
    assert len(names) == len(set(names))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Two pages, each with a listing and with links that a chapter has."""
    pypdf = pytest.importorskip("pypdf")
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("paper")
    shutil.copy(ROOT / "book/_static/book.css", folder)
    for name, other in (("one", "two"), ("two", "one")):
        (folder / f"{name}.html").write_text(PAGE.format(name, other))
    with ThreadPoolExecutor(1) as thread:  # the tests' own browser may hold this thread's loop
        sheets = thread.submit(print_pages, folder, ["one", "two"], folder / "book.pdf")
    read = pypdf.PdfReader(folder / "book.pdf")
    assert sheets.result() == len(read.pages)
    return read


def test_pages_are_joined_with_bookmarks_and_numbers(book):
    assert [item.title for item in book.outline] == ["one", "two"]
    second = book.get_destination_page_number(book.outline[1])
    assert "On paper." in book.pages[second].extract_text()
    for number, sheet in enumerate(book.pages, start=1):
        assert sheet.extract_text().split()[-1] == str(number)


def test_links_within_the_book_lead_to_sheets_and_dead_ones_go(book):
    second = book.get_destination_page_number(book.outline[1])
    links = [link.get_object() for sheet in book.pages for link in sheet.get("/Annots", [])]
    addresses = [str(link["/A"]["/URI"]) for link in links if "/A" in link]
    assert addresses == ["https://arxiv.org/"] * 2, "none leads to a file of this machine"
    starts = [
        book.get_page_number(link["/Dest"][0].get_object()) for link in links if "/Dest" in link
    ]
    assert len(starts) == 4
    # in each page first a link to itself, though both name it by the same word, then to the other
    assert starts[1] == second
    assert starts[3] == 0
    assert starts[0] < second <= starts[2]


def test_a_long_listing_begins_where_it_stands_and_what_is_pressed_is_left_out(book):
    first = book.pages[0].extract_text()
    assert "line 1 of" in first, "it does not wait for a sheet of its own"
    text = "".join(sheet.extract_text() for sheet in book.pages)
    assert text.count("line 150 of") == 2
    assert text.count("folded away") == 2, "folds are open"
    for pressed in ("Run", "Exercises:", "Show code", "Take this page along"):
        assert pressed not in text


def test_a_book_that_is_not_built_is_an_error_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pdf", "--html", str(tmp_path)])
    with pytest.raises(SystemExit, match="say `make book` first"):
        main()


@pytest.mark.skipif(not find_browser(), reason="no browser on this machine")
def test_a_library_that_playwright_lacks_is_told_in_a_line(tmp_path):
    """A bare Debian has none for atomic operations, which its Node is linked to."""
    node = tmp_path / "node"
    says = "node: error while loading shared libraries: libatomic.so.1"
    node.write_text(f"#!/bin/sh\necho '{says}' >&2; exit 127\n")
    node.chmod(0o755)
    why = missing(node)
    assert why is not None
    assert why.endswith(says)
    assert "install libatomic1" in why
