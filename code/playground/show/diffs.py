"""Differences between one stage of a script and the next, as a page shows them."""

import difflib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from playground.show.colours import GREY, PALE, RANKS

ROOT = Path(__file__).parents[3]
COLOURS = {"+": "rgba(0, 158, 115, 0.18)", "-": "rgba(213, 94, 0, 0.18)"}  # over either theme


def code_of(script: str) -> list[str]:
    """The lines of a script (a path from the book's root) from its first import on."""
    lines = (ROOT / script).read_text().splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith(("import", "from"))) :]


class Diff:
    """Lines that differ between two scripts, with one line of context before and after them.

    `marks` has texts of new lines, and for each the mark that the page refers to it by.
    """

    def __init__(self, before: str, after: str, marks: Mapping[str, str] | None = None):
        self.marks = marks or {}
        self.names = before.rpartition("/")[2], after.rpartition("/")[2]
        found = difflib.unified_diff(code_of(before), code_of(after), n=1, lineterm="")
        lines = [line for line in found if not line.startswith(("---", "+++"))][1:]
        self.lines = [line for line in lines if line[1:].strip()]
        for text in self.marks:
            assert sum(text in line for line in self.lines if line[0] == "+") == 1, text

    @property
    def added(self) -> int:
        """How many lines are new in the second script."""
        return sum(line.startswith("+") for line in self.lines)

    def __repr__(self) -> str:
        return "\n".join(map(self._shown, self.lines))

    def _shown(self, line: str) -> str:
        if line.startswith("@@"):
            return "⋮"
        found = [mark for text, mark in self.marks.items() if line[0] == "+" and text in line]
        return "  ".join([line, *found])

    def _repr_html_(self) -> str:
        rows = []
        for line in repr(self).splitlines():
            colour = COLOURS.get(line[:1], "transparent")
            rows.append(f'<span style="display:block;background:{colour}">{escape(line)}</span>')
        title = f"<strong>{self.names[0]} → {self.names[1]}</strong>"
        return f'<pre tabindex="0">{title}{"".join(rows)}</pre>'


def growth(scripts: Sequence[str]) -> Figure:
    """For each stage, how many lines it keeps of the one before and how many it adds."""
    figure, axis = plt.subplots(figsize=(7.2, 2.3))
    for i, script in enumerate(scripts):
        total = len([line for line in code_of(script) if line.strip()])
        new = Diff(scripts[i - 1], script).added if i else 0
        axis.barh(i, total - new, color=PALE, edgecolor=GREY, linewidth=0.5)
        axis.barh(i, new, left=total - new, color=RANKS[2])
        if i:
            axis.annotate(f"{new} new", (total, i), (6, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(scripts)), [script.rpartition("/")[2] for script in scripts])
    axis.set(xlabel="lines that are not empty", xlim=(0, 80))
    axis.invert_yaxis()
    return figure
