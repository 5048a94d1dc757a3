"""Outputs of pages: taken from files that were recorded, or computed before the build.

MyST-NB alone would execute the pages itself, or look for outputs in a database. Here it gets the
outputs from a file per page (`playground/build/outputs.py` decides which). Sphinx reads a page
again if a different file has become valid.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import myst_nb.sphinx_
from docutils import nodes
from myst_nb.core.execute import NotebookClientBase
from nbformat import NotebookNode
from nbformat.notebooknode import from_dict
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from playground.build import outputs
from playground.build.pieces import teach_myst_nb

SAYS_WHERE = "says-where"


class RecordedOutputs(NotebookClientBase):
    """Adds the recorded outputs to the cells of a page."""

    def start_client(self) -> None:
        cells = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        if not cells:
            return
        root, name = place_of(self.path)
        file = outputs.fresh(root, name)
        if file is None:
            raise ExtensionError(
                f"{name}: its outputs are of other code than it has now: build with `make book`, "
                "which executes such pages first"
            )
        for cell, record in zip(cells, outputs.load(file)["cells"], strict=True):
            found = [from_dict(outputs.whole(output)) for output in record["outputs"]]
            is_news = SAYS_WHERE in cell["metadata"].get("tags", [])
            cell["outputs"] = found if is_news else without_where(found)

    def nb_source_code_lexer(self) -> str:
        return "ipython3"


def without_where(found: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs without the line in which `launch` prints how many ranks ran, on CPUs with gloo.

    All recorded ranks ran there, so the book shows the line only once, in the cell with the tag
    `says-where`. A reader's own run prints it every time.
    """
    kept = []
    for output in found:
        if output["output_type"] == "stream":
            output["text"] = re.sub(r"^\d+ ranks? · gloo · CPU\n", "", output["text"], flags=re.M)
        if output.get("text") != "":
            kept.append(output)
    return kept


def place_of(path: Path | None) -> tuple[Path, str]:
    """The folder with `_toc.yml`, and the name of a page relative to it."""
    assert path is not None, "a page is a file"
    root = next(folder for folder in path.parents if (folder / "_toc.yml").exists())
    return root, path.relative_to(root).with_suffix("").as_posix()


def create_client(
    notebook: NotebookNode, source: str, nb_config: Any, logger: Any, read_fmt: dict | None = None
) -> NotebookClientBase:
    return RecordedOutputs(notebook, Path(source), nb_config, logger)


def shown(root: Path, name: str) -> str:
    """Name and time of the file with a page's outputs, to detect that they have changed."""
    file = outputs.fresh(root, name)
    return f"{file} {file.stat().st_mtime_ns}" if file else ""


def read_again(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    before = getattr(env, "shown_outputs", {})
    now = {name: shown(Path(app.srcdir), name) for name in env.found_docs}
    env.shown_outputs = now  # type: ignore[attr-defined]
    return [name for name in now if name in before and before[name] != now[name]]


def say_when(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add an expandable mark next to the title: when and on which machine the outputs were made."""
    file = outputs.fresh(Path(app.srcdir), docname)
    title = next(iter(doctree.findall(nodes.title)), None)
    if file is None or title is None:
        return
    stamp = outputs.load(file)["stamp"]
    line = (
        f"The outputs on this page were recorded on {stamp['date']}: {stamp['machine']}, "
        f"torch {stamp['torch']}. Press Run to make your own."
    )
    mark = f'<details class="recorded"><summary>recorded outputs</summary>{escape(line)}</details>'
    below = title.parent.index(title) + 1
    following = title.parent[below] if below < len(title.parent) else None
    if isinstance(following, nodes.container) and "opening" in following["classes"]:
        following += nodes.raw("", mark, format="html")
    else:
        title.parent.insert(
            below, nodes.container("", nodes.raw("", mark, format="html"), classes=["opening"])
        )


def setup(app: Sphinx) -> dict[str, Any]:
    myst_nb.sphinx_.create_client = create_client
    teach_myst_nb()
    app.connect("env-get-outdated", read_again)
    app.connect("doctree-resolved", say_when, priority=600)  # below the line of `opening`
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
