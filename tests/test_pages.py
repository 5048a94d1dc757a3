"""Every chapter runs as a notebook, without a browser, in a kernel of its own."""

from pathlib import Path

import nbclient
import pytest
from myst_nb.core.read import read_myst_markdown_notebook

BOOK = Path(__file__).parents[1] / "book"
PAGES = sorted(page.relative_to(BOOK) for page in BOOK.rglob("*.md"))


def notebook(page: Path):
    """The page as Jupyter Book reads it: `:load:` has put the modules into their cells."""
    return read_myst_markdown_notebook((BOOK / page).read_text(), path=BOOK / page)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_cell_of_the_page_runs(page, tmp_path):
    book = notebook(page)
    nbclient.NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    for cell in book.cells:
        failed = [out for out in cell.get("outputs", []) if out["output_type"] == "error"]
        meant = "raises-exception" in cell.metadata.get("tags", [])
        assert bool(failed) == meant, cell.source
    assert not [*tmp_path.iterdir()], "a page leaves no file"


def test_every_page_stands_in_the_table_of_contents():
    toc = (BOOK.parent / "_toc.yml").read_text()
    for page in PAGES:
        assert f"file: book/{page.with_suffix('')}" in toc or page.name == "index.md"
