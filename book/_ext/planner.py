"""`{planner}`: the planner with a first plan; further ones are computed in the reader's tab.

The page brings a form, one small script and one style. Python itself (Pyodide from `node_modules`)
and the modules (see `tab.py`) are fetched when a reader touches the form: see `planner.js`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from playground.planner import page


class Planner(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        for path in (*page.files(), Path(page.__file__)):
            self.env.note_dependency(str(path))
        return [PlannerNode("", nodes.raw("", page.page(), format="html"))]


class PlannerNode(nodes.General, nodes.Element):
    """What holds the planner: its page gets the script."""


def attach_files_where_a_planner_is(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    if doctree is not None and any(doctree.findall(PlannerNode)):
        app.add_css_file("planner.css")
        app.add_js_file("planner.js", type="module")


def nothing(writer: Any, node: PlannerNode) -> None:
    pass


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("planner", Planner)
    both = (nothing, nothing)
    app.add_node(PlannerNode, html=both, latex=both, text=both)
    app.connect("html-page-context", attach_files_where_a_planner_is)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
