"""`{trace-reader}`: a place for traces, with an example read; others are read in the reader's tab.

The page brings one small script and one style. Python itself (Pyodide from `node_modules`) and the
modules (see `tab.py`) are fetched when a reader drops a file: see `trace-reader.js`.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from playground.build.tab import CODE
from playground.trace_reader import page


class TraceReader(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        folders = (CODE / "distributed/read_trace", CODE / "playground/trace_reader")
        ours = [path for folder in folders for path in folder.glob("*.py")]
        for path in (*page.files(), *ours):
            self.env.note_dependency(str(path))
        root = "../" * self.env.docname.count("/")
        return [TraceReaderNode("", nodes.raw("", page.page(root), format="html"))]


class TraceReaderNode(nodes.General, nodes.Element):
    """What holds the reader of traces: its page gets the script."""


def attach_files(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    if doctree is not None and any(doctree.findall(TraceReaderNode)):
        app.add_css_file("trace-reader.css")
        app.add_js_file("trace-reader.js", type="module")


def nothing(writer: Any, node: TraceReaderNode) -> None:
    pass


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("trace-reader", TraceReader)
    both = (nothing, nothing)
    app.add_node(TraceReaderNode, html=both, latex=both, text=both)
    app.connect("html-page-context", attach_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
