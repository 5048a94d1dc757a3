"""The line under a chapter's title: how long it takes to read, and what one should have read.

The time comes from what the page shows, the chapters that it needs from what its modules import.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx

from playground.build.digest import CELL
from playground.build.modules import modules_by_part, named
from playground.build.reach import imports_of
from playground.build.toc import chapters, pages_in_order

WORDS, LINES, STEP = 180, 20, 5  # read in a minute; and minutes are told in steps
MOST = 4  # chapters to name


def reading_time(words: int, lines: int) -> int:
    """Minutes, rounded to what can be known."""
    return max(STEP, round((words / WORDS + lines / LINES) / STEP) * STEP)


def amount(node: nodes.Node) -> tuple[int, int]:
    """Words of prose and lines of code that one sees. Outputs and folded code count nothing."""
    if isinstance(node, nodes.Text):
        return len(re.findall(r"\w+", node)), 0
    if isinstance(node, nodes.literal_block):
        return 0, sum(1 for line in node.astext().splitlines() if line.strip())
    if isinstance(node, HideCodeCellNode | nodes.raw | nodes.comment | nodes.math_block):
        return 0, 0
    if isinstance(node, nodes.Element) and (
        node.get("nb_element") == "cell_code_output" or "dropdown" in node.get("classes", [])
    ):
        return 0, 0
    parts = [amount(child) for child in node.children]
    return sum(words for words, _ in parts), sum(lines for _, lines in parts)


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


def is_chapter(root: Path, page: str) -> bool:
    """Exercises take as long as they take, and nobody reads the reference from top to bottom."""
    parts = {caption: files for caption, files in chapters(root).items() if caption != "Reference"}
    return any(page in files for files in parts.values()) and "/exercises" not in page


def work_out_what_is_needed(app: Any) -> None:
    app.needed_pages = needed(Path(app.srcdir))


def say_what_it_takes(app: Any, doctree: nodes.document, docname: str) -> None:
    root = Path(app.srcdir)
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is None or not is_chapter(root, docname):
        return
    line = nodes.inline("", f"{reading_time(*amount(doctree))} min")
    for number, page in enumerate(app.needed_pages[docname]):
        line += nodes.Text("; " if number else " · needs: ")  # titles have commas
        there = app.builder.get_relative_uri(docname, page)
        name = app.env.titles[page].astext()
        line += nodes.reference("", name, internal=True, refuri=there)
    place = title.parent.index(title) + 1
    title.parent.insert(place, nodes.container("", line, classes=["opening"]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", work_out_what_is_needed)
    app.connect("doctree-resolved", say_what_it_takes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
