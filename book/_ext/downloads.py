"""Downloads of every page with live cells, as a notebook and as a script."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from citations import in_words
from pybtex.database import Entry
from sphinx.application import Sphinx

from playground.build.pieces import read_page

NEEDS = """\
This is a page of the book. Its code uses the book's modules: start Jupyter, or Python, with the
book's folder `code` on the path, for example `export PYTHONPATH=/path/to/the/book/code`."""
LINKS = """\
<p class="live-downloads">Download this page:
<a href="{name}.ipynb" download>notebook</a>, <a href="{name}.py" download>script</a>.
Each explains how to get the book's modules.</p>
"""


def without_terms(text: str) -> str:
    """Replace references to terms by plain words."""
    return re.sub(r"\{term\}`([^`<]+?)(?:\s*<[^`]*>)?`", r"\1", text)


def plain(text: str, entries: Mapping[str, Entry]) -> str:
    """Replace the book's markup of terms and citations, which notebooks can't show, by words."""
    text = without_terms(text)
    return re.sub(r"\{cite:([tp])\}`([^`]+)`", lambda m: in_words(m[1], m[2], entries), text)


def notebook_of(source: Path, entries: Mapping[str, Entry]) -> Any:
    """Notebook with a page's text and code, taken from the book's source; no cell has run."""
    page = read_page(source)
    for cell in page.cells:
        if isinstance(cell.metadata.get("tags"), str):
            cell.metadata["tags"] = [cell.metadata["tags"]]
        cell.metadata.pop("load", None)  # the cell now contains the code itself
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, entries)
    page.cells.insert(0, nbformat.v4.new_markdown_cell(NEEDS))
    for number, cell in enumerate(page.cells):
        cell["id"] = f"part-{number}"  # the same id in every build
    page.metadata = {"kernelspec": page.metadata.get("kernelspec", {})}
    page.metadata["kernelspec"].setdefault("display_name", "Python 3")
    nbformat.validate(page)
    return page


def script_of(page: Any) -> str:
    """Python script of a notebook. Text becomes comments, and so do cells that should fail."""
    parts = []
    for cell in page.cells:
        is_code = cell.cell_type == "code"
        fails = "raises-exception" in cell.metadata.get("tags", [])
        head = "# %%" if is_code else "# %% [markdown]"
        if is_code and fails:
            head += "\n# This cell is meant to fail. Uncomment it to see how."
        text = cell.source
        if not is_code or fails:
            text = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
        parts.append(f"{head}\n{text}\n")
    return "\n".join(parts)


def offer_downloads(app: Sphinx, pagename: str, context: dict[str, Any]) -> None:
    """Write both files next to the page, and add links to them at its end."""
    bibliography: Any = app.env.get_domain("cite")
    page = notebook_of(Path(app.env.doc2path(pagename)), bibliography.bibdata.data.entries)
    target = Path(app.outdir, pagename)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name(target.name + ".ipynb").write_text(nbformat.writes(page) + "\n")
    target.with_name(target.name + ".py").write_text(script_of(page))
    context["body"] += LINKS.format(name=target.name)
