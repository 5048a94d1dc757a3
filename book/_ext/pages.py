"""Parts of pages that are generated from the book itself, so they are written only once.

`{book-map}` shows the parts of the book as questions, with their chapters from `_toc.yml`; the core
path is marked. `{module-reference}` lists every module of `code/distributed` with its public names,
in the order of the book and then by folder. It parses the source and imports nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from playground.build.modules import modules_by_part
from playground.build.toc import MAINTAINERS, chapters, core_path

DOT = "\N{NO-BREAK SPACE}· "  # between links; the space keeps it from the beginning of a line


class BookMap(SphinxDirective):
    """Every part as a question, with links to its chapters; those of the core path are marked.

    The lines of the directive are `Part: its question?`.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        root, lines = Path(self.env.srcdir), list[str]()
        self.env.note_dependency(str(root / "_toc.yml"))
        said = dict(line.split(": ", 1) for line in self.content if line)
        parts = {caption: of for caption, of in chapters(root).items() if caption != MAINTAINERS}
        if wrong := said.keys() ^ parts.keys():
            raise self.error(f"a part without a question, or no part: {', '.join(sorted(wrong))}")
        core = core_path(root)
        for caption, files in parts.items():
            links = [f"{{doc}}`/{file}`" for file in files]
            marked = [
                f"**{link}**" if file in core else link
                for link, file in zip(links, files, strict=True)
            ]
            lines += [f"*{caption}.* {said[caption]}", f": {DOT.join(marked)}", ""]
        found = nodes.container(classes=["book-map"])
        self.state.nested_parse(StringList(lines, "book-map"), 0, found)
        return [found]


class ModuleReference(SphinxDirective):
    """Every module: its docstring, and its public classes and functions with their signatures."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        sections: list[nodes.Node] = []
        for caption, modules in modules_by_part(root).items():
            sections.append(self.section(caption, f"part {caption}"))
            for path, page in modules:
                self.env.note_dependency(str(path))
                sections[-1] += self.module(path, f"Taught in {{doc}}`/{page}`.")
        for room, caption in ROOMS.items():
            sections.append(self.section(caption, f"room {room}"))
            for path in sorted((root / f"code/distributed/{room}").glob("[!_]*.py")):
                self.env.note_dependency(str(path))
                sections[-1] += self.module(path, "")
        return sections

    def section(self, title: str, name: str) -> nodes.section:
        found = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(name)])
        return found

    def module(self, path: Path, where: str) -> nodes.section:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        room = path.parent.name
        name = f"{'distributed.' if room in ROOMS else ''}{room}.{path.stem}"
        found = self.section(name, f"module {name}")
        self.parse(["````{py:module} " + name, "````", where], found)
        found += docstring_nodes(ast.get_docstring(tree) or "")
        for node in public(tree.body):
            self.describe(node, found)
        return found

    def describe(self, node: ast.ClassDef | ast.FunctionDef, parent: nodes.Element) -> None:
        """Describe a class or function, and below a class its public methods."""
        inside = isinstance(parent, addnodes.desc_content)
        if isinstance(node, ast.ClassDef):
            kind, written = "class", node.name + fields(node)
        else:
            kind = "method" if inside else "function"
            given = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            written = f"{node.name}({arguments(node, inside)}){given}"
            if any(ast.unparse(d) == "property" for d in node.decorator_list):
                kind, written = "property", node.name
        holder = nodes.container()
        self.parse([f"````{{py:{kind}}} {written}", "````"], holder)
        content = next(iter(holder.findall(addnodes.desc_content)))
        content += docstring_nodes(ast.get_docstring(node) or "")
        if isinstance(node, ast.ClassDef):
            for method in public(node.body):
                if isinstance(method, ast.FunctionDef) and ast.get_docstring(method):
                    self.env.ref_context["py:class"] = node.name  # each description removes it
                    self.describe(method, content)
        parent += holder.children

    def parse(self, lines: list[str], parent: nodes.Element) -> None:
        self.state.nested_parse(StringList(lines, "module-reference"), 0, parent)


ROOMS = {
    "planner": "What plans with numbers alone",
    "read_trace": "What reads a trace",
    "instruments": "What measures",
    "runtime": "What carries the programs",
    "workbench": "What they are tried on",
}


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Classes and functions whose names don't begin with an underscore, each name once."""
    seen = set()
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        if not node.name.startswith("_") and node.name not in seen:
            seen.add(node.name)
            yield node


def fields(node: ast.ClassDef) -> str:
    """Arguments of a class: the fields of a record, or those of its `__init__`."""
    records = {"NamedTuple", "dataclass"}
    named = [ast.unparse(n).split(".")[-1] for n in (*node.bases, *node.decorator_list)]
    if any(name.split("(")[0] in records for name in named):
        lines = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
        return f"({', '.join(lines)})"
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return f"({arguments(method, True)})"
    return ""


def arguments(node: ast.FunctionDef, without_self: bool) -> str:
    static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
    if without_self and not static:
        del (node.args.posonlyargs or node.args.args)[:1]
    return ast.unparse(node.args)


def docstring_nodes(text: str) -> list[nodes.Node]:
    """A docstring in its own layout: paragraphs, `code`, and blocks that keep their lines."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.startswith((" ", "- ", "| ")) for line in lines):
            found.append(nodes.literal_block(block, block, language="none", classes=["docstring"]))
        elif lines:
            found.append(nodes.paragraph("", "", *inline(" ".join(lines))))
    return found


def inline(text: str) -> list[nodes.Node]:
    parts = re.split(r"`([^`]+)`", text)
    return [
        nodes.literal(part, part) if number % 2 else nodes.Text(part)
        for number, part in enumerate(parts)
        if part
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("book-map", BookMap)
    app.add_directive("module-reference", ModuleReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
