"""Collectives of `shapes`, step by step; the book's own code runs on ranks that are threads.

Rank r's numbers have its color. In a collective that doesn't add, a part has the color of the one
rank whose numbers it contains. In a sum each rank has a slot, as in `steps`.
"""

from collections.abc import Iterable
from dataclasses import replace

from playground.show.emulate import recording, run_in_threads
from playground.show.shapes import SHAPES
from playground.show.steps import Run, Steps

# All-reduce has its own chapter. In all-to-all, parts end up in a different position.
MOVES = {shape.name: shape for shape in SHAPES if shape.name not in ("all-reduce", "all-to-all")}


class Moved(Run):
    """A run in which numbers are copied but never added."""

    def caption(self, step: int) -> str:
        if step == 0:
            return f"Before step 1 of {self.last}: what each rank has, in the color of its numbers."
        return super().caption(step)

    def result(self) -> str:
        busiest = max(self.sent(rank) for rank in range(self.ranks))
        return f" The busiest rank has sent {busiest:.2f} arrays."


def step_through(name: str, ranks: Iterable[int] = range(2, 9), start: int = 4) -> Steps:
    """A run of this collective for each number of ranks; the figure opens with `start`."""
    return Steps(name, [run_of(name, size) for size in ranks], start)


def run_of(name: str, ranks: int) -> Run:
    """The messages of one run, and what each rank has after each step, in as many parts."""
    shape = MOVES[name]
    messages, arrays = recording(run_in_threads(shape.work, ranks, shape.before))
    if shape.sums:
        return Run(messages, arrays)
    return Moved([replace(message, adds=False) for message in messages], arrays)
