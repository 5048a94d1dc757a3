"""The line below a chapter's title, and the core path on the front page.

The line gives the minutes for reading the chapter, and for reading it and doing its tasks. It also
gives the chapter's number on the core path, or else the last chapter of the core path before it. On
the front page, `{core-path}` lists the chapters of the core path with their minutes and results.
`{of-the-book}` inserts numbers: the count of `chapters` on the core path, the hours to `read` and
to `do` them, and the `megabytes` that Run loads into a reader's tab.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.statemachine import StringList
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from playground.build.toc import core_path, pages_in_order, taught

WORDS, LINES = 200, 25  # per minute of reading
CELL_MINUTES, TASK_MINUTES = 0.4, 2.0  # to run a cell and look; for a question or a change
EXERCISE = re.compile(r"(\d+) minutes\b")  # an exercise begins with its time
STEP = 5  # minutes; the time for doing a chapter is rounded up to these


class Amount(NamedTuple):
    """Amount of material on a page: words of prose, lines of code, visible cells, and tasks.

    `minutes` is the sum of the times that its exercises state.
    """

    words: int = 0
    lines: int = 0
    cells: int = 0
    tasks: int = 0
    minutes: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def to_read(self) -> int:
        """Minutes of reading."""
        return max(1, round(self.words / WORDS + self.lines / LINES))

    @property
    def to_do(self) -> int:
        """Minutes of reading, running all cells, and answering all questions."""
        all_of_it = self.to_read + CELL_MINUTES * self.cells + TASK_MINUTES * self.tasks
        all_of_it += self.minutes
        return STEP * math.ceil(all_of_it / STEP)


def amount(node: nodes.Node) -> Amount:
    """Count what a page shows: outputs and folded code don't count; a folded answer is a task."""
    if isinstance(node, nodes.Text):
        return Amount(words=len(re.findall(r"\S*\w\S*", node)))  # "don't" and "1,250" are words
    if isinstance(node, nodes.literal_block):
        return Amount(lines=sum(1 for line in node.astext().splitlines() if line.strip()))
    if isinstance(node, HideCodeCellNode | nodes.raw | nodes.comment | nodes.math_block):
        return Amount()
    found = Amount()
    if isinstance(node, nodes.Element):
        if node.get("nb_element") == "cell_code_output":
            return Amount()
        if "dropdown" in node.get("classes", []):
            return Amount(tasks=1)
        if node.get("hide_mode") in ("all", "input", "input+output"):
            return Amount()  # a folded cell, in the form that chapters have for the landing page
        found = Amount(cells=node.get("nb_element") == "cell_code_source")
        if isinstance(node, nodes.emphasis) and (said := EXERCISE.match(node.astext())):
            found = Amount(minutes=int(said[1]))
    for child in node.children:
        found = found.plus(amount(child))
    return found


class OfTheBook(nodes.Inline, nodes.TextElement):
    """A number of the book or of one `page`, filled in when all chapters have been read."""


class OfTheBookRole(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        depend_on_core_path(self.env)
        return [OfTheBook(what=self.text, page="")], []


class CorePath(SphinxDirective):
    """The chapters of the core path, from lines of the form `page: its result`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        depend_on_core_path(self.env)
        pages = core_path(Path(self.env.srcdir))
        lines = [f"1. **{{doc}}`/{page}`** {result}" for page, result in pages.items()]
        found = nodes.container(classes=["core-path"])
        self.state.nested_parse(StringList(lines, "core-path"), 0, found)
        for page, item in zip(pages, found.findall(nodes.list_item), strict=True):
            time = nodes.inline("", "", OfTheBook(what="minutes", page=page), classes=["minutes"])
            title = next(item.findall(nodes.strong))
            title.parent.insert(title.parent.index(title) + 1, [nodes.Text(" "), time])
        return [found]


def depend_on_core_path(env: Any) -> None:
    root = Path(env.srcdir)
    for page in core_path(root):
        env.note_dependency(str(root / f"{page}.md"))


def fill_in_numbers(app: Any, doctree: nodes.document, docname: str) -> None:
    places = list(doctree.findall(OfTheBook))
    if not places:
        return
    root = Path(app.srcdir)
    found = {page: amount(app.env.get_doctree(page)) for page in core_path(root)}
    said = {
        "chapters": in_words(len(found)),
        "read": hours(sum(each.to_read for each in found.values())),
        "do": hours(sum(each.to_do for each in found.values())),
        "megabytes": str(megabytes(root, Path(app.outdir))),
    }
    for place in places:
        minutes = f"{found[place['page']].to_read} min." if place["page"] else ""
        place.replace_self(nodes.Text(minutes or said[place["what"]]))


def megabytes(root: Path, out: Path) -> int:
    """MB that Run loads into a tab once: Pyodide, the modules, the memory of a started Python."""
    size = re.search(r"SIZE = (\d+);", (root / "book/_static/python-parts.js").read_text("utf-8"))
    assert size is not None
    known = json.loads((out / "_static/tab.json").read_text("utf-8"))
    return round(int(size[1]) + float(known["memory"]))


NAMES = (
    "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)


def hours(minutes: int) -> str:
    number = max(1, round(minutes / 60))
    return f"{in_words(number)} hour{'s' * (number > 1)}"


def in_words(number: int) -> str:
    names = NAMES.split(" ")
    return names[number] if number < len(names) else str(number)


def core_chapter_before(root: Path, page: str) -> str | None:
    """The last chapter of the core path before a page that isn't on it."""
    core, order = core_path(root), pages_in_order(root)
    before = [other for other in order[: order.index(page)] if other in core]
    return before[-1] if before else None


def say_what_it_takes(app: Any, doctree: nodes.document, docname: str) -> None:
    root = Path(app.srcdir)
    title = next(iter(doctree.findall(nodes.title)), None)
    core = [*core_path(root)]
    if title is None or docname not in {*taught(root), *core}:
        return
    found = amount(app.env.get_doctree(docname))  # as for the front page: links unresolved
    line = nodes.inline("", f"{found.to_read} min to read, or {found.to_do} if you also run it")
    if docname in core:
        line += nodes.Text(f" · {core.index(docname) + 1} of {len(core)} on the core path")
    elif before := core_chapter_before(root, docname):
        line += nodes.Text(" · after: ")
        there = app.builder.get_relative_uri(docname, before)
        name = app.env.titles[before].astext()
        line += nodes.reference("", name, internal=True, refuri=there)
    place = title.parent.index(title) + 1
    title.parent.insert(place, nodes.container("", line, classes=["opening"]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(OfTheBook)
    app.add_role("of-the-book", OfTheBookRole())
    app.add_directive("core-path", CorePath)
    app.connect("doctree-resolved", fill_in_numbers)
    app.connect("doctree-resolved", say_what_it_takes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
