"""Blocks of ZeRO-3 that take turns in their buffers: recorded on a rank, and drawn."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from distributed.zero import Zero3
from distributed.zero.blocks import Block, BlockState
from playground.show.colours import GREY, RANKS


@dataclass
class Turns:
    """Events of one rank's blocks: (block, its new state), or (block, None) when it computes."""

    buffer_of: list[int]  # buffer of each block
    held: dict[int, BlockState]  # states of the blocks that weren't sharded at the start
    events: list[tuple[int, BlockState | None]] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)  # name → number of events before it

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.events)

    @property
    def most_gathered(self) -> int:
        """The largest number of blocks that were not sharded at the same time."""
        now, most = {*self.held}, len(self.held)
        for block, state in self.events:
            now = now - {block} if state is BlockState.SHARDED else now | {block}
            most = max(most, len(now))
        return most


class Watched(Block):
    """A block that records its states; `watch_turns` changes the class of blocks to this one."""

    turns: Turns

    def _enter(self, state: BlockState) -> None:
        super()._enter(state)
        self.turns.events.append((self.index, state))

    def wait_for_unshard(self) -> None:
        super().wait_for_unshard()
        self.turns.events.append((self.index, None))  # its forward or backward pass follows


@contextlib.contextmanager
def watch_turns(zero: Zero3) -> Iterator[Turns]:
    """Record the events of the blocks of `zero`, except the root, which takes no turns."""
    buffers = list(dict.fromkeys(block.buffer for block in zero.blocks))
    held: dict[int, BlockState] = {
        b.index: b.state for b in zero.blocks if b.state is not BlockState.SHARDED
    }
    turns = Turns([buffers.index(block.buffer) for block in zero.blocks], held)
    for block in zero.blocks:
        block.__class__, block.turns = Watched, turns  # type: ignore[attr-defined]
    try:
        yield turns
    finally:
        for block in zero.blocks:
            block.__class__ = Block


def draw_turns(turns: Turns) -> Figure:
    """A row per buffer: which block is in it, with the block's number while it computes."""
    places = [0.0]  # positions of events: computing has a width, and other events are narrow
    for _, state in turns.events:
        places.append(places[-1] + (0.35 if state else 3.0))
    figure, axis = plt.subplots(figsize=(7.2, 2.2))
    since = {block: (0.0, state) for block, state in turns.held.items()}
    for at, after, (block, state) in zip(places, places[1:], turns.events, strict=False):
        row = turns.buffer_of[block]
        if state is None:
            axis.text((at + after) / 2, row, str(block), ha="center", va="center", color="black")
            continue
        if block in since:
            _draw_stay(axis, row, block, at, *since.pop(block))
        if state is not BlockState.SHARDED:
            since[block] = after, state
    for block, (start, state) in since.items():
        _draw_stay(axis, turns.buffer_of[block], block, places[-1], start, state)
    for name, number in turns.marks.items():
        axis.axvline(places[number], color=GREY, linewidth=1)
        axis.text(places[number], -0.6, f" {name}", color=GREY)
    axis.legend(
        [Patch(facecolor="none", edgecolor=GREY, hatch="////"), Patch(color=GREY)],
        ["being gathered", "gathered (number = computing now)"],
        loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2,
    )  # fmt: skip
    buffers = max(turns.buffer_of) + 1
    axis.set_yticks(range(buffers), [f"buffer {i}" for i in range(buffers)])
    axis.set(xticks=[], ylim=(buffers - 0.55, -0.8), xlim=(0, places[-1] + 0.2))
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return figure


def _draw_stay(
    axis: Axes, row: int, block: int, end: float, start: float, state: BlockState
) -> None:
    colour = RANKS[block % len(RANKS)]
    gathering = state is BlockState.GATHERING
    axis.barh(
        row, end - start, 0.7, left=start, facecolor="none" if gathering else colour,
        edgecolor=colour, hatch="////" if gathering else None, linewidth=1,
    )  # fmt: skip
