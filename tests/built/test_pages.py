"""Every chapter ran from top to bottom when the book was built, as it is written now."""

import subprocess
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from myst_nb.core.read import read_myst_markdown_notebook

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
PAGES = sorted(page.relative_to(BOOK) for page in BOOK.rglob("*.md"))


def notebook(page: Path):
    """The page as Jupyter Book reads it: `:load:` has put the modules into their cells."""
    return read_myst_markdown_notebook((BOOK / page).read_text(), path=BOOK / page)


@pytest.fixture(scope="module")
def executed(built):
    """What the build has executed: page → its notebook with outputs."""
    cache = get_cache(built.parent / ".jupyter_cache")
    return {
        Path(record.uri).relative_to(BOOK): cache.get_cache_bundle(record.pk).nb
        for record in cache.list_cache_records()
    }


def sources(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_cell_of_the_page_ran(page, executed):
    book = notebook(page)
    if not sources(book):
        return
    assert sources(executed[page]) == sources(book)
    for cell in executed[page].cells:
        failed = [out for out in cell.get("outputs", []) if out["output_type"] == "error"]
        meant = "raises-exception" in cell.metadata.get("tags", [])
        assert bool(failed) == meant, cell.source


def test_no_page_left_a_file():
    command = ["git", "ls-files", "--others", "--exclude-standard", "book"]
    left = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = {".md", ".bib", ".py", ".js", ".css"}  # by people
    assert not [file for file in left.splitlines() if Path(file).suffix not in written]


def test_every_page_stands_in_the_table_of_contents():
    toc = (BOOK.parent / "_toc.yml").read_text()
    for page in PAGES:
        assert f"file: book/{page.with_suffix('')}" in toc or page.name == "index.md"
