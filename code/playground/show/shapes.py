"""Shapes of the collectives: which rank has which numbers before and after.

The book's own code runs, on ranks that are threads. Rank r's numbers have its color. A cell with
one rank's numbers is filled. In a sum each rank has a slot, and a partial sum is hatched.
"""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

from distributed import collectives
from distributed.all_reduce import ring
from distributed.trees import tree_broadcast, tree_reduce
from playground.show.colours import RANKS
from playground.show.emulate import run_in_threads

SIDE, GAP, LEFT, MIDDLE = 26, 5, 12, 36  # px: a cell, between lanes, the dots, the arrow
Rows = list[list[int]]  # [rank][part]: bits of the ranks whose numbers are in it


class Shape(NamedTuple):
    """A collective on x, whose part r is where `out` of rank r is; `sums` if it adds."""

    name: str
    work: Callable[..., Any]
    has: Callable[[int, int], bool]  # has(rank, part) before
    keeps: Callable[[int, int], bool]  # and after
    sums: bool = False

    def before(self, rank: int, ranks: int) -> list[int]:
        """What x holds on this rank: its own numbers, or 0 where it has none."""
        return [1 << rank if self.has(rank, part) else 0 for part in range(ranks)]


def every(rank: int, part: int) -> bool:
    return True


def root(rank: int, part: int) -> bool:
    return rank == 0


def own(rank: int, part: int) -> bool:
    return rank == part


def all_to_all(group: Any, x: Any, add: Any) -> None:
    given = x.clone()
    collectives.all_to_all(group, given, x)


def mine(group: Any, x: Any) -> Any:
    return x[group.rank : group.rank + 1]


SHAPES = [
    Shape("broadcast", lambda g, x, add: tree_broadcast(g, x), root, every),
    Shape("scatter", lambda g, x, add: collectives.scatter(g, x, mine(g, x)), root, own),
    Shape("all-gather", lambda g, x, add: collectives.all_gather(g, mine(g, x), x), own, every),
    Shape("all-to-all", all_to_all, every, every),
    Shape("reduce", lambda g, x, add: tree_reduce(g, x, add), every, root, sums=True),
    Shape("gather", lambda g, x, add: collectives.gather(g, mine(g, x), x), own, root),
    Shape(
        "reduce-scatter",
        lambda g, x, add: collectives.reduce_scatter(g, x, mine(g, x), add),
        every,
        own,
        sums=True,
    ),
    Shape("all-reduce", ring, every, every, sums=True),
]


def states(shape: Shape, ranks: int = 4) -> tuple[Rows, Rows]:
    """What each rank has before and after; 0 where it has nothing that counts."""

    groups = run_in_threads(shape.work, ranks, shape.before)
    after = [
        [bits if shape.keeps(group.rank, part) else 0 for part, bits in enumerate(group.x.tolist())]
        for group in groups
    ]
    return [shape.before(rank, ranks) for rank in range(ranks)], after


class Shapes:
    """All collectives, in pairs, as one figure."""

    def __init__(self, ranks: int = 4):
        self.ranks = ranks
        self.states = {shape.name: states(shape, ranks) for shape in SHAPES}

    def _repr_html_(self) -> str:
        look = (
            "display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:1rem 1.6rem"
        )
        figures = "".join(self._panel(shape) for shape in SHAPES)
        return f'<div style="{look}" role="group" aria-label="collectives">{figures}</div>'

    def __repr__(self) -> str:
        return "\n".join(self.words(shape) for shape in SHAPES)

    def words(self, shape: Shape) -> str:
        """Which ranks hold how many of the parts, before and after."""
        said = []
        for rows in self.states[shape.name]:
            said.append(", ".join(f"{sum(map(bool, row))}" for row in rows))
        return f"{shape.name}: parts on ranks 0, 1, …: {said[0]}; after: {said[1]}"

    def _panel(self, shape: Shape) -> str:
        wide = self.ranks * SIDE
        right = LEFT + wide + MIDDLE
        before, after = self.states[shape.name]
        high = self.ranks * (SIDE + GAP)
        arrow = f"M{LEFT + wide + 6},{high / 2} h20 m-6,-5 l6,5 l-6,5"
        cells = rows_of(before, LEFT, shape) + rows_of(after, right, shape)
        return (
            f'<figure style="margin:0"><figcaption style="font-weight:600">{shape.name}'
            f'</figcaption><svg viewBox="0 0 {right + wide + 2} {high}" role="img" '
            f'aria-label="{escape(self.words(shape))}" '
            f'style="width:100%;max-width:18rem;display:block">{hatching(shape)}{cells}'
            f'<path d="{arrow}" fill="none" stroke="currentColor" stroke-width="1.6"/></svg>'
            "</figure>"
        )


def hatching(shape: Shape) -> str:
    """What a partial sum is drawn through; named, for a page may have several."""
    return (
        f'<defs><pattern id="{shape.name}-stripes" width="6" height="6" '
        'patternTransform="rotate(45)" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" fill="#777"/><rect width="3" height="6" fill="#fff"/>'
        f'</pattern><mask id="{shape.name}-hatched"><rect width="100%" height="100%" '
        f'fill="url(#{shape.name}-stripes)"/></mask></defs>'
    )


def rows_of(rows: Rows, left: float, shape: Shape) -> str:
    """A lane for each rank, with its dot if it is the first thing in the lane."""
    drawn = []
    for rank, row in enumerate(rows):
        y = rank * (SIDE + GAP)
        if left == LEFT:
            drawn.append(f'<circle cx="4" cy="{y + SIDE / 2}" r="4" fill="{RANKS[rank]}"/>')
        cells = [cell_of(bits, left + i * SIDE, y, shape, len(rows)) for i, bits in enumerate(row)]
        drawn += cells
    return "".join(drawn)


def cell_of(bits: int, x: float, y: float, shape: Shape, ranks: int) -> str:
    """A part of an array: empty, one rank's, or a sum with a slot for each rank."""
    wide, complete = SIDE - 3, bits.bit_count() == ranks
    frame = f'x="{x}" y="{y}" width="{wide}" height="{SIDE}" rx="3"'
    if not bits:
        return f'<rect {frame} fill="none" stroke="var(--pst-color-border)"/>'
    whose = [rank for rank in range(ranks) if bits >> rank & 1]
    if not shape.sums:
        return f'<rect {frame} fill="{RANKS[whose[0]]}"/>'
    mask = "" if complete else f' mask="url(#{shape.name}-hatched)"'
    slot = wide / ranks
    slots = "".join(
        f'<rect x="{x + rank * slot:.2f}" y="{y}" width="{slot:.2f}" height="{SIDE}" '
        f'fill="{RANKS[rank]}"{mask}/>'
        for rank in whose
    )
    look = "steps-part steps-complete" if complete else "steps-part"
    return f'<rect class="steps-slot" {frame}/>{slots}<rect class="{look}" {frame}/>'


class SharedSum:
    """An all-reduce in shared memory: each rank adds up one column, and writes it everywhere."""

    def __init__(self, ranks: int = 4):
        self.ranks = ranks
        self.before = [[1 << rank] * ranks for rank in range(ranks)]
        self.after = [[(1 << ranks) - 1] * ranks for _ in range(ranks)]

    def _repr_html_(self) -> str:
        panels = [
            self._panel("numbers are in", self.before, False),
            self._panel("each rank adds a column", self.before, True),
            self._panel("sums are out", self.after, False),
        ]
        look = "display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:1rem"
        return f'<div style="{look}" role="group" aria-label="{self}">{"".join(panels)}</div>'

    def __repr__(self) -> str:
        return (
            f"Each of {self.ranks} ranks has an array of {self.ranks} parts. Rank i adds up part i "
            "of all arrays, where they are, and writes the sum into all of them."
        )

    def _panel(self, title: str, rows: Rows, framed: bool) -> str:
        shape = Shape(title.replace(" ", "-"), ring, every, every, sums=True)
        high = self.ranks * (SIDE + GAP)
        frames = "".join(
            f'<rect x="{LEFT + part * SIDE - 1.5}" y="-2" width="{SIDE}" '
            f'height="{high - 1}" rx="4" '
            f'fill="none" stroke="{RANKS[part]}" stroke-width="2.5"/>'
            for part in range(self.ranks * framed)
        )
        return (
            '<figure style="margin:0;max-width:11rem">'
            f'<figcaption style="font-weight:600">{title}</figcaption>'
            f'<svg viewBox="0 -4 {LEFT + self.ranks * SIDE + 2} {high + 4}" role="img" '
            f'aria-label="{title}" style="width:100%;max-width:11rem;display:block">'
            f"{hatching(shape)}{rows_of(rows, LEFT, shape)}{frames}</svg></figure>"
        )
