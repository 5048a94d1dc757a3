"""The line under a chapter's title: how long it takes, and what one should have read.

The time comes from what the page shows: to read it, and to do all that it asks for. The chapters
that it needs come from what its modules import. On the landing page `{core-time}` says how long the
core path takes: the sum of its chapters, in hours.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from playground.build.digest import CELL
from playground.build.modules import modules_by_part, named
from playground.build.reach import imports_of
from playground.build.toc import core_path, pages_in_order, taught

WORDS, LINES = 200, 25  # read in a minute
CELL_MINUTES, TASK_MINUTES = 0.4, 2.0  # to run a cell and look; a question, or a thing to change
STEP = 5  # what is to be done is told in such steps
MOST = 4  # chapters to name


class Amount(NamedTuple):
    """What a page has: words of prose, lines of code, cells in sight, and things to do."""

    words: int = 0
    lines: int = 0
    cells: int = 0
    tasks: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def to_read(self) -> int:
        """Minutes."""
        return max(1, round(self.words / WORDS + self.lines / LINES))

    @property
    def to_do(self) -> int:
        """Minutes, for who runs the cells and answers the questions, too."""
        all_of_it = self.to_read + CELL_MINUTES * self.cells + TASK_MINUTES * self.tasks
        return STEP * math.ceil(all_of_it / STEP)


def amount(node: nodes.Node) -> Amount:
    """What one sees of a page. Outputs and folded code count nothing, folded answers as a task."""
    if isinstance(node, nodes.Text):
        return Amount(words=len(re.findall(r"\w+", node)))
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
            return Amount()  # a folded cell, as a chapter has it when the landing page asks
        found = Amount(cells=node.get("nb_element") == "cell_code_source")
    for child in node.children:
        found = found.plus(amount(child))
    return found


class CoreTime(nodes.Inline, nodes.TextElement):
    """Where the hours of the core path will stand, when all its chapters have been read."""


class CoreTimeRole(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        root = Path(self.env.srcdir)
        for page in core_path(root):
            self.env.note_dependency(str(root / f"{page}.md"))
        return [CoreTime(what=self.text)], []


def fill_in_core_time(app: Any, doctree: nodes.document, docname: str) -> None:
    """{core-time}`chapters`, {core-time}`read` and {core-time}`do`, in whole hours."""
    places = list(doctree.findall(CoreTime))
    if not places:
        return
    pages = core_path(Path(app.srcdir))
    found = [amount(app.env.get_doctree(page)) for page in pages]
    said = {
        "chapters": in_words(len(pages)),
        "read": hours(sum(each.to_read for each in found)),
        "do": hours(sum(each.to_do for each in found)),
    }
    for place in places:
        place.replace_self(nodes.Text(said[place["what"]]))


NAMES = "no one two three four five six seven eight nine ten eleven twelve"


def hours(minutes: int) -> str:
    number = max(1, round(minutes / 60))
    return f"{in_words(number)} hour{'s' * (number > 1)}"


def in_words(number: int) -> str:
    names = NAMES.split(" ")
    return names[number] if number < len(names) else str(number)


def imported_by_chapter(root: Path) -> dict[str, set[str]]:
    """Each chapter's earlier ones whose modules its own (without any, its cells) import."""
    order = pages_in_order(root)[1:]
    owned = [pair for pairs in modules_by_part(root).values() for pair in pairs]
    owners = {path.stem: page for path, page in owned}
    if "world" in owners:  # `from distributed import launch`
        owners["__init__"] = owners["world"]
    found = {}
    for number, page in enumerate(order):
        names = [file.stem for path, own in owned if own == page for file in imports_of(path)]
        if page not in owners.values():
            names = named("\n".join(CELL.findall((root / f"{page}.md").read_text("utf-8"))))
        found[page] = {owners[name] for name in names if name in owners} & set(order[:number])
    return found


def needed(root: Path) -> dict[str, list[str]]:
    """The nearest chapters that a chapter needs: none that another of them needs itself."""
    direct = imported_by_chapter(root)
    order = list(direct)

    def all_before(page: str) -> set[str]:
        return direct[page].union(*(all_before(other) for other in direct[page]))

    nearest = {
        page: others - set().union(*(all_before(other) for other in others))
        for page, others in direct.items()
    }
    return {page: sorted(others, key=order.index)[-MOST:] for page, others in nearest.items()}


def work_out_what_is_needed(app: Any) -> None:
    app.needed_pages = needed(Path(app.srcdir))


def say_what_it_takes(app: Any, doctree: nodes.document, docname: str) -> None:
    root = Path(app.srcdir)
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is None or docname not in taught(root):
        return
    found = amount(doctree)
    line = nodes.inline("", f"{found.to_read} min to read, {found.to_do} to do")
    for number, page in enumerate(app.needed_pages[docname]):
        line += nodes.Text("; " if number else " · needs: ")  # titles have commas
        there = app.builder.get_relative_uri(docname, page)
        name = app.env.titles[page].astext()
        line += nodes.reference("", name, internal=True, refuri=there)
    place = title.parent.index(title) + 1
    title.parent.insert(place, nodes.container("", line, classes=["opening"]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(CoreTime)
    app.add_role("core-time", CoreTimeRole())
    app.connect("builder-inited", work_out_what_is_needed)
    app.connect("doctree-resolved", fill_in_core_time)
    app.connect("doctree-resolved", say_what_it_takes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
