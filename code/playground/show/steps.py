"""A real run of a collective, message by message, as a figure to step through.

`record(ring, ranks=4)` runs the algorithm on real ranks. Rank r gives the number 2ʳ at every place
of its array, so a sum of such numbers says whose are in it. Every message is noted where it is
sent, with the place in the array and the number; steps follow from who had to wait for whom.
"""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from distributed import Group, world

CELL, ROW, LEFT = 64, 56, 64  # px: width of a place in the array, height of a rank, its name


@dataclass(frozen=True)
class Message:
    """x[start:end] of rank `sender` goes to rank `to`, which adds it to its own, or copies it."""

    step: int
    sender: int
    to: int
    start: int
    end: int
    adds: bool


class Recorder(Group):
    """`group`, which notes all messages about the array `x`, and how x looks between them."""

    def __init__(self, group: Group, x: torch.Tensor):
        super().__init__(group.device, group.board, group.local_size, group.backend)
        self.x = x
        self.states: list[list[int]] = []  # before each call
        self.calls: list[list[tuple[str, int, int, int]]] = []  # (what, with whom, start, end)

    def _start(self, messages: list[Any]) -> list[Any]:
        self.states.append(self.x.tolist())
        call = []
        for function, tensor, peer in messages:
            offset = tensor.data_ptr() - self.x.data_ptr()
            within = 0 <= offset < max(1, self.x.nbytes)
            start = offset // self.x.itemsize if within else 0  # a copy: of all of x
            call.append((function.__name__, peer, start, start + len(tensor)))
        self.calls.append(call)
        return super()._start(messages)


def run_recorded(group: Group, algorithm: Callable[..., Any]) -> tuple[list, list]:
    """One rank's calls, and its array before each of them and at the end."""
    x = torch.full((group.size,), 1 << group.rank)
    recorder = Recorder(group, x)
    algorithm(recorder, x, torch.add)
    return recorder.calls, [*recorder.states, x.tolist()]


def record(algorithm: Callable[..., Any], ranks: int = 4) -> "Steps":
    """Run `algorithm(group, x, combine)` on `ranks` ranks; each has an array of as many numbers."""
    with world(ranks, device="cpu") as run:
        recorded = run(run_recorded, algorithm)
    return Steps(algorithm.__name__, *put_in_steps(recorded))


def put_in_steps(
    recorded: list[tuple[list, list]],
) -> tuple[list[Message], list[list[list[int]]]]:
    """Messages with their steps, and all ranks' arrays after each step: [step][rank][place].

    A message takes the step after the latest that either side had to do before it.
    """
    pairs = match([calls for calls, _ in recorded])
    done = [[0] * (len(calls) + 1) for calls, _ in recorded]  # [rank][calls made]: the step
    for _ in range(sum(map(len, done))):  # each round settles one more call, or changes nothing
        for sender, number, to, there, *_ in pairs:
            step = 1 + max(done[sender][number], done[to][there])
            for rank, call in ((sender, number), (to, there)):
                later = done[rank][call + 1 :]
                done[rank][call + 1 :] = [max(step, known) for known in later]
    messages = []
    for sender, number, to, there, start, end in pairs:
        before, after = recorded[to][1][there : there + 2]
        adds = after[start] == before[start] + recorded[sender][1][number][start]
        step = 1 + max(done[sender][number], done[to][there])
        messages.append(Message(step, sender, to, start, end, adds))
    last = max((message.step for message in messages), default=0)
    arrays = [
        [
            states[max(call for call, at in enumerate(done[rank]) if at <= step)]
            for rank, (_, states) in enumerate(recorded)
        ]
        for step in range(last + 1)
    ]
    return sorted(messages, key=lambda message: (message.step, message.sender)), arrays


def match(calls: list[list]) -> list[tuple[int, int, int, int, int, int]]:
    """(sender, its call, receiver, its call, start, end) of each message: first sent, first in."""
    sent: dict[tuple[int, int], list] = {}
    came: dict[tuple[int, int], list] = {}
    for rank, of_rank in enumerate(calls):
        for number, call in enumerate(of_rank):
            for what, peer, start, end in call:
                if what == "isend":
                    sent.setdefault((rank, peer), []).append((number, start, end))
                else:
                    came.setdefault((peer, rank), []).append(number)
    return [
        (sender, number, to, there, start, end)
        for (sender, to), gone in sent.items()
        for (number, start, end), there in zip(gone, came[sender, to], strict=True)
    ]


class Steps:
    """A recorded run as a figure: `book/_static/steps.js` shows one step at a time.

    Without it, and in print, all steps stand one below the other.
    """

    def __init__(self, name: str, messages: list[Message], arrays: list[list[list[int]]]):
        self.name, self.messages, self.arrays = name, messages, arrays
        self.ranks, self.last = len(arrays[0]), len(arrays) - 1

    def caption(self, step: int) -> str:
        """What happens in a step, in words."""
        if step == 0:
            return f"Before step 1 of {self.last}: each rank has its own numbers."
        now = [message for message in self.messages if message.step == step]
        does = {True: "Receivers add.", False: "Receivers copy."}
        kinds = {message.adds for message in now}
        doing = does[kinds.pop()] if len(kinds) == 1 else "Some receivers add, some copy."
        said = [
            f"rank {m.sender} sends {place(m.start, m.end, self.ranks)} to rank {m.to}" for m in now
        ]
        return f"Step {step} of {self.last}. {doing} {', '.join(said).capitalize()}."

    def _repr_html_(self) -> str:
        frames = "".join(
            f'<figure class="steps-frame" data-step="{step}">{self._drawing(step)}'
            f"<figcaption>{escape(self.caption(step))}</figcaption></figure>"
            for step in range(self.last + 1)
        )
        name = f"{self.name} on {self.ranks} ranks, step by step"
        return f'<div class="steps" role="group" aria-label="{escape(name)}">{frames}</div>'

    def __repr__(self) -> str:
        return "\n".join(self.caption(step) for step in range(self.last + 1))

    def _drawing(self, step: int) -> str:
        """Rows are ranks, columns are parts of the array; a number r in a part: rank r is in it."""
        width, height = LEFT + self.ranks * CELL + 8, self.ranks * ROW + 4
        parts = []
        for rank, numbers in enumerate(self.arrays[step]):
            y = rank * ROW + 2
            parts.append(f'<text x="0" y="{y + 27}">rank {rank}</text>')
            for i, number in enumerate(numbers):
                x = LEFT + i * CELL
                whose = [str(r) for r in range(self.ranks) if number >> r & 1]
                kind = "steps-all" if len(whose) == self.ranks else f"steps-{min(len(whose), 4)}"
                parts.append(
                    f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL - 4}" height="{ROW - 14}"/>'
                    f'<text class="steps-whose" x="{x + CELL / 2 - 2}" y="{y + 26}">'
                    f"{' '.join(whose) if self.ranks < 6 else ''.join(whose)}</text>"
                )
        for message in self.messages:
            if message.step == step:
                parts.append(self._arrow(message))
        alt = f"{self.caption(step)} Afterwards: {self._contents(step)}."
        return (
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}">'
            f"{''.join(parts)}</svg>"
        )

    def _arrow(self, message: Message) -> str:
        """From the sender's place to the receiver's, with a piece that moves along it."""
        from_y, to_y = (rank * ROW + 2 + (ROW - 14) / 2 for rank in (message.sender, message.to))
        x = LEFT + message.start * CELL + CELL - 10
        wide = max(1, message.end - message.start) * CELL - 4
        head = 5 if to_y > from_y else -5
        arrow = f"M{x},{from_y} L{x},{to_y} m-4,{-head} l4,{head} l4,{-head}"
        return (
            f'<rect class="steps-piece" x="{LEFT + message.start * CELL}" '
            f'y="{to_y - (ROW - 14) / 2}" width="{wide}" height="{ROW - 14}" '
            f'style="--from: {from_y - to_y}px"/>'
            f'<path class="steps-arrow" d="{arrow}"/>'
        )

    def _contents(self, step: int) -> str:
        """How many parts are complete: short enough to be read out."""
        counts = [[number.bit_count() for number in numbers] for numbers in self.arrays[step]]
        complete = sum(count == self.ranks for numbers in counts for count in numbers)
        return f"{complete} of {self.ranks**2} parts have all ranks' numbers"


def place(start: int, end: int, ranks: int) -> str:
    if (start, end) == (0, ranks):
        return "all of its array"
    return f"part {start}" if end == start + 1 else f"parts {start} to {end - 1}"
