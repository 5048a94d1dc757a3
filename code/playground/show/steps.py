"""Recorded run of a collective, message by message, as a figure to step through.

`record(ring, ranks=4)` runs the algorithm on real ranks. Every element of rank r's array is 2ʳ, so
the bits of a sum show which ranks are in it. The sender records each message with its position in
the array and its number. Steps follow from which rank had to wait for which.
`record(ring, ranks=range(2, 9))` records a run per number of ranks, for a slider between them.
"""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from distributed import Group, world
from distributed.workbench.threads import ThreadGroup
from playground.show.colours import RANKS


@dataclass(frozen=True)
class Message:
    """x[start:end] of rank `sender` goes to rank `to`, which adds it to its own or copies it."""

    step: int
    sender: int
    to: int
    start: int
    end: int
    adds: bool


class Recorder(Group):
    """A `group` that records all messages of the array `x`, and the state of x between them."""

    def __init__(self, group: Group, x: torch.Tensor):
        super().__init__(group.device, group.board, group.local_size, group.backend)
        self.x = x
        self.states: list[list[int]] = []  # before each call
        self.calls: list[list[tuple[str, int, int, int]]] = []  # (what, with whom, start, end)

    relay: Any = ThreadGroup.relay  # one at a time: messages queued ahead don't count as a step

    def _start(self, messages: Sequence[Any]) -> list[Any]:
        self.states.append(self.x.tolist())
        named = [(function.__name__, tensor, peer) for function, tensor, peer in messages]
        self.calls.append(note_call(self.x, named))
        return super()._start(messages)


def note_call(
    x: torch.Tensor, messages: Sequence[tuple[str, torch.Tensor, int]]
) -> list[tuple[str, int, int, int]]:
    """The part of x in each of the messages that begin together: (what, with whom, start, end)."""
    call = []
    for what, tensor, peer in messages:
        offset = tensor.data_ptr() - x.data_ptr()
        within = 0 <= offset < max(1, x.nbytes)
        start = offset // x.itemsize if within else 0  # a copy: of all of x
        call.append((what, peer, start, start + len(tensor)))
    return call


def run_recorded(
    group: Group, algorithm: Callable[..., Any], parts: int | None
) -> tuple[list, list]:
    """One rank's calls, and its array before each of them and at the end."""
    x = torch.full((parts or group.size,), 1 << group.rank)
    recorder = Recorder(group, x)
    algorithm(recorder, x, torch.add)
    return recorder.calls, [*recorder.states, x.tolist()]


def record(
    algorithm: Callable[..., Any],
    ranks: int | Sequence[int] = 4,
    start: int = 4,
    parts: int | None = None,
    plays: bool = False,
) -> "Steps":
    """Run `algorithm(group, x, combine)` on `ranks` ranks; each has an array of `parts` parts.

    By default an array has one part per rank. With `parts=1`, each rank has a single number. If
    there are several numbers of ranks, the figure opens with `start`. If `plays`, it plays once,
    when it comes into view, unless the reader prefers reduced motion.
    """
    runs = []
    for size in [ranks] if isinstance(ranks, int) else ranks:
        with contextlib.redirect_stdout(io.StringIO()), world(size, device="cpu") as run:
            recorded = run(run_recorded, algorithm, parts)
        runs.append(Run(*put_in_steps(recorded)))
    return Steps(algorithm.__name__, runs, start, plays)


def put_in_steps(
    recorded: list[tuple[list, list]],
) -> tuple[list[Message], list[list[list[int]]]]:
    """Messages with their steps, and all ranks' arrays after each step: [step][rank][place].

    A message's step comes after all earlier steps of its sender and its receiver.
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
    """Match sends with receives in order: sender, its call, receiver, its call, start, end."""
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


@dataclass(frozen=True)
class Run:
    """One recorded run: its messages, and all ranks' arrays after each step: [step][rank][part].

    Bit r of a number says that rank r's numbers are in that part; 0 means an empty part.
    """

    messages: list[Message]
    arrays: list[list[list[int]]]

    @property
    def ranks(self) -> int:
        return len(self.arrays[0])

    @property
    def last(self) -> int:
        return len(self.arrays) - 1

    def caption(self, step: int) -> str:
        """What happens in a step, in words."""
        if step == 0:
            what = "a number of its own" if len(self.arrays[0][0]) == 1 else "its own numbers"
            return f"Before step 1 of {self.last}: every rank has {what}, in its color."
        now = [message for message in self.messages if message.step == step]
        kinds = {message.adds for message in now}
        does = {True: "Receivers add what arrives.", False: "Receivers keep what arrives."}
        doing = does[kinds.pop()] if len(kinds) == 1 else "Some receivers add, some keep."
        pairs = ", ".join(f"{m.sender} → {m.to}" for m in now)
        return f"Step {step} of {self.last}: {pairs}. {doing}{self.result() * (step == self.last)}"

    def result(self) -> str:
        """The result of the run, and what it cost."""
        busiest = max(self.sent(rank) for rank in range(self.ranks))
        complete = sum(part.bit_count() == self.ranks for row in self.arrays[-1] for part in row)
        if len(self.arrays[0][0]) == 1:
            return f" Now {complete} of {self.ranks} ranks have the sum."
        return (
            f" Now {complete} of {sum(map(len, self.arrays[-1]))} parts are complete. The busiest "
            f"rank has sent {busiest:.2f} arrays."
        )

    @property
    def recording(self) -> dict[str, Any]:
        """The data that `book/_static/steps.js` draws."""
        return {
            "arrays": self.arrays,
            "messages": [[m.step, m.sender, m.to, m.start, m.end] for m in self.messages],
            "words": [self.caption(step) for step in range(self.last + 1)],
        }

    def sent(self, rank: int) -> float:
        """Total that a rank has sent, in arrays."""
        parts = [m.end - m.start for m in self.messages if m.sender == rank]
        return sum(parts) / len(self.arrays[0][rank])


class Steps:
    """Recorded runs as a figure: `book/_static/steps.js` draws it, one step at a time.

    Without scripts, the page lists the steps in words.
    """

    def __init__(self, name: str, runs: Sequence[Run], start: int = 4, plays: bool = False):
        self.name, self.runs, self.plays = name, list(runs), plays
        self.first = next((run for run in self.runs if run.ranks == start), self.runs[0])

    def _repr_html_(self) -> str:
        data = {
            "colours": RANKS,
            "start": self.first.ranks,
            "runs": {run.ranks: run.recording for run in self.runs},
        }
        words = "".join(f"<li>{escape(line)}</li>" for line in repr(self).splitlines())
        name = f"{self.name.replace('_', ' ')}, step by step"
        plays = " data-plays" if self.plays else ""
        return (
            f'<div class="steps"{plays} role="group" aria-label="{escape(name)}" '
            f'data-steps="{escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))}">'
            f'<ol class="steps-words">{words}</ol></div>'
        )

    def __repr__(self) -> str:
        return "\n".join(self.first.caption(step) for step in range(self.first.last + 1))
