"""The whole book on paper: in the order of the table of contents, with a bookmark for each page."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from playground.build.pdf import find_browser, main, missing, parts_on_paper, print_pages
from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[2]
PARTS = {"": ["one"], "A part": ["two"]}
LISTING = "\n".join(f"line {number} of a long listing" for number in range(1, 151))
PAGE = f"""<!doctype html><meta charset="utf-8"><title>{{0}} — Book</title>
<link rel="stylesheet" href="print.css"><article class="bd-article"><section><h1>{{0}}</h1>
<details class="recorded"><summary>recorded</summary>On two cores. Press Run for yours.</details>
<p>On paper. <a href="#idea">The idea</a> <a href="{{1}}.html">other</a>
<a href="genindex.html">index</a> <a href="https://arxiv.org">far</a>
<div class="live-bar"><button>Run</button></div>
<div class="exercise-progress"><label>Exercises: <meter></meter></label></div>
<div class="cell"><details class="hide"><summary><p class="collapsed">The code</p>
<p>Fold the code</p></summary><pre>folded away</pre></details>
<div class="cell_output"><pre>printed</pre></div></div>
<div class="cell"><details class="hide"><summary><p class="collapsed">A longer table</p>
</summary><pre>folded, too</pre></details><div class="live-bar"><pre></pre></div></div>
<details class="exercise-hint"><summary>Hint 1</summary>think again</details>
<div class="admonition dropdown"><p class="admonition-title">Answer</p><p>Forty-two.</p></div>
<div class="cell_input" style="overflow: auto"><div class="highlight-x" style="break-inside: avoid">
<div class="highlight"><pre>{LISTING}</pre></div></div></div>
<h2 id="idea">The idea</h2><p class="live-downloads">Take this page along</p></section></article>"""


def test_every_chapter_is_on_paper_and_what_is_looked_up_is_not():
    pages = [page for pages in parts_on_paper(ROOT).values() for page in pages]
    left_out = set(pages_in_order(ROOT)) - set(pages)
    assert pages[:2] == ["book/index", "book/first_steps/one_device"]
    assert len(pages) == len(set(pages))
    assert {page for page in left_out if "/maintainers/" not in page} == {
        "book/reference/api",
        "book/reference/teaching",
    }


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Two pages, each with a listing and with links that a chapter has."""
    pypdf = pytest.importorskip("pypdf")
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("paper")
    shutil.copy(ROOT / "book/_static/print.css", folder)
    for name, other in (("one", "two"), ("two", "one")):
        (folder / f"{name}.html").write_text(PAGE.format(name, other))
    with ThreadPoolExecutor(1) as thread:  # the tests' own browser may hold this thread's loop
        printed = thread.submit(print_pages, folder, PARTS, folder / "book.pdf")
    read = pypdf.PdfReader(folder / "book.pdf")
    last = printed.result()["two"]
    assert last.first + last.sheets == len(read.pages)
    return read


@pytest.fixture(scope="module")
def text(book):
    return "".join(sheet.extract_text() for sheet in book.pages)


def test_pages_are_joined_with_bookmarks_and_feet(book):
    first, part, (second,) = book.outline
    assert [first.title, part.title, second.title] == ["one", "A part", "two"]
    start = book.get_destination_page_number(second)
    assert "On paper." in book.pages[start].extract_text()
    for number, sheet in enumerate(book.pages, start=1):
        title = "two" if number > start else "one" if number < start else "Contents"
        assert sheet.extract_text().split()[-2:] == [title, str(number)]


def test_the_contents_stand_behind_the_first_page_and_say_where_pages_begin(book):
    second = book.get_destination_page_number(book.outline[2][0])
    said = book.pages[second - 1].extract_text().split()
    assert said == ["Contents", "one", "1", "A", "part", "two", str(second + 1), *said[-2:]]


def starts(book, sheets):
    links = [link.get_object() for sheet in sheets for link in sheet.get("/Annots", [])]
    targets = [link["/Dest"][0].get_object() for link in links if "/Dest" in link]
    return [book.get_page_number(target) for target in targets], links


def test_links_within_the_book_lead_to_sheets_and_dead_ones_go(book):
    second = book.get_destination_page_number(book.outline[2][0])
    assert starts(book, [book.pages[second - 1]])[0] == [0, second], "the contents"
    for sheets, own, other in (
        (book.pages[: second - 1], 0, second),
        (book.pages[second:], second, 0),
    ):
        found, links = starts(book, sheets)
        addresses = [str(link["/A"]["/URI"]) for link in links if "/A" in link]
        assert addresses == ["https://arxiv.org/"], "none leads to a file of this machine"
        # to itself, though both name it by one word; to the other; to the answer and back
        idea, elsewhere, *answer = found
        assert own < idea < own + len(sheets)
        assert elsewhere == other
        assert len(answer) == 2
        assert all(own <= sheet < own + len(sheets) for sheet in answer)


def test_a_long_listing_begins_where_it_stands_and_what_is_pressed_is_left_out(book, text):
    assert "line 1 of" in book.pages[0].extract_text(), "it does not wait for a sheet of its own"
    assert text.count("line 150 of") == 2
    for pressed in ("Run", "Exercises:", "Take this page along"):
        assert pressed not in text


def test_folds_stay_on_the_page_but_for_their_titles(text):
    for folded in ("folded away", "folded, too", "think again", "The code"):
        assert folded not in text
    assert text.count("printed") == 2
    assert text.count("On the page: A longer table · Hint 1") == 2, "neighbours share a line"
    assert text.count("On two cores.") == 2


def test_an_answer_stands_behind_the_text(book, text):
    assert text.count("Answer: see answer 1 of this page") == 2
    assert text.index("The idea", text.index("line 150")) < text.index("Forty-two.")


def test_a_book_that_is_not_built_is_an_error_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pdf", "--html", str(tmp_path)])
    with pytest.raises(SystemExit, match="run `make book` first"):
        main()


@pytest.mark.slow
def test_the_book_is_one_that_can_be_printed(built, tmp_path):
    if why := missing():
        pytest.skip(why)
    parts = parts_on_paper(ROOT)
    with ThreadPoolExecutor(1) as thread:
        pages = thread.submit(print_pages, built, parts, tmp_path / "book.pdf").result()
    assert max(page.first + page.sheets for page in pages.values()) <= 250
    assert max(page.sheets for page in pages.values()) <= 8, "no page is a book of its own"


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
