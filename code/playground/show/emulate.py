"""Recordings of collectives without processes, on ranks that are threads and note each message.

The algorithms are the book's own, and they send the same messages in the same order as on
processes, so a figure of `steps` looks the same. Thirty recordings take about a second.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from distributed.workbench import threads
from playground.show.steps import Message, Run, Steps, note_call, put_in_steps

Array = Any  # a tensor, although the parent class uses a memoryview
Algorithm = Callable[..., Any]  # algorithm(group, x, combine)


class NotedGroup(threads.ThreadGroup):
    """One of several ranks in this process; notes each message and the state of `x` before it."""

    def __init__(self, rank: int, size: int, mailboxes: threads.Mailboxes):
        super().__init__(rank, size, mailboxes)
        self.x = torch.full((size,), 1 << rank)  # bit r: rank r's numbers are in it
        self.states: list[list[int]] = []
        self.calls: list[list[tuple[str, int, int, int]]] = []

    def send(self, x: Array, to: int) -> None:
        self._note(("isend", x, to))
        super().send(x, to)

    def receive(self, x: Array, source: int) -> Array:
        self._note(("irecv", x, source))
        return super().receive(x, source)

    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array:
        self._note(("isend", outgoing, to), ("irecv", incoming, source))
        super().send(outgoing, to)
        return super().receive(incoming, source)

    def empty_like(self, x: Array) -> Array:
        return torch.empty_like(x)

    def copy(self, x: Array, into: Array) -> Array:
        return into.copy_(x)

    def parts(self, whole: Array, part: Array | None = None) -> list[Array]:
        return list(whole.tensor_split(self.size))

    def _note(self, *messages: tuple[str, Array, int]) -> None:
        self.states.append(self.x.tolist())
        self.calls.append(note_call(self.x, messages))


def run_in_threads(
    algorithm: Algorithm, size: int, before: Callable[[int, int], list[int]] | None = None
) -> list[NotedGroup]:
    """All ranks' groups after `algorithm`; `before(rank, size)` is what x holds if not its own."""

    def run(group: NotedGroup) -> NotedGroup:
        if before:
            group.x = torch.tensor(before(group.rank, size))
        algorithm(group, group.x, torch.add)
        return group

    return threads.run_in_threads(run, size, NotedGroup)


def recording(groups: list[NotedGroup]) -> tuple[list[Message], list[list[list[int]]]]:
    """What they noted: messages with their steps, and all ranks' arrays after each step."""
    return put_in_steps([(group.calls, [*group.states, group.x.tolist()]) for group in groups])


def record(algorithm: Algorithm, ranks: int | Sequence[int] = 4, start: int = 4) -> Steps:
    """What `steps.record` records: `algorithm` on some number of ranks, or on several to choose."""
    sizes = [ranks] if isinstance(ranks, int) else ranks
    runs = [Run(*recording(run_in_threads(algorithm, size))) for size in sizes]
    return Steps(algorithm.__name__, runs, start)
