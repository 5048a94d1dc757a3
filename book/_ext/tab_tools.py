"""`{planner}` and `{trace-reader}`: tools that run in the reader's tab, without a kernel.

A page contains each tool with a first answer, a small script, and its styles. Python itself
(Pyodide from `node_modules`) and the modules (see `tab.py`) are loaded when a reader uses the tool:
see `planner.js` and `trace-reader.js`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from playground.build.tab import CODE
from playground.planner import page as planner
from playground.trace_reader import page as trace_reader


class Tool(SphinxDirective):
    def made(self, name: str, html: str, files: Iterable[Path]) -> list[nodes.Node]:
        """The tool as HTML, marked with its name so that `attach_files` finds it."""
        for path in files:
            self.env.note_dependency(str(path))
        return [nodes.raw("", html, format="html", tool=name)]


class Planner(Tool):
    def run(self) -> list[nodes.Node]:
        files = (*planner.files(), Path(planner.__file__))
        return self.made("planner", planner.page(), files)


class TraceReader(Tool):
    def run(self) -> list[nodes.Node]:
        folders = (CODE / "distributed/read_trace", CODE / "playground/trace_reader")
        ours = [path for folder in folders for path in folder.glob("*.py")]
        root = "../" * self.env.docname.count("/")
        return self.made("trace-reader", trace_reader.page(root), (*trace_reader.files(), *ours))


def attach_files(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    for node in doctree.findall(nodes.raw) if doctree is not None else ():
        if name := node.get("tool"):
            app.add_css_file("tab-tools.css")
            app.add_css_file(f"{name}.css")
            app.add_js_file(f"{name}.js", type="module")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("planner", Planner)
    app.add_directive("trace-reader", TraceReader)
    app.connect("html-page-context", attach_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
