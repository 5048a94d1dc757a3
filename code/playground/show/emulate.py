"""Recordings of collectives without processes: ranks that are threads, and note each message.

The algorithms are the book's own, and so is the order of their messages: what a figure of `steps`
shows does not depend on who carries them. Thirty recordings take a second here.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import torch

from playground.show.steps import Run, Steps, put_in_steps

Algorithm = Callable[..., Any]  # algorithm(group, x, combine)
PATIENCE = 10  # seconds: who waits longer has a partner that does not send


class NotedGroup:
    """One rank of several in this process; notes its messages, and how `x` looks before each."""

    def __init__(self, rank: int, size: int, mailboxes: dict[tuple[int, int], SimpleQueue]):
        self.rank, self.size = rank, size
        self.mailboxes = mailboxes  # (sender, receiver) → its messages, in order
        self.x = torch.full((size,), 1 << rank)  # bit r: rank r's numbers are in it
        self.states: list[list[int]] = []
        self.calls: list[list[tuple[str, int, int, int]]] = []

    def send(self, x: torch.Tensor, to: int) -> None:
        self._note([("isend", x, to)])
        self.mailboxes[self.rank, to].put(x.clone())

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        self._note([("irecv", x, source)])
        return self._take(x, source)

    def exchange(
        self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
    ) -> torch.Tensor:
        self._note([("isend", outgoing, to), ("irecv", incoming, source)])
        self.mailboxes[self.rank, to].put(outgoing.clone())
        return self._take(incoming, source)

    def exchanging(
        self, outgoing: torch.Tensor, to: int, n: int, source: int, piece: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """All in one piece: arrays are short here."""
        incoming = outgoing.new_empty(n)
        yield slice(0, n), self.exchange(outgoing, to, incoming, source)

    def empty_like(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def copy(self, x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        return into.copy_(x)

    def announce(self, *_: Any) -> None:
        """Other groups check here that all ranks call the same."""

    check_rank = check_parts = announce

    def _take(self, x: torch.Tensor, source: int) -> torch.Tensor:
        return x.copy_(self.mailboxes[source, self.rank].get(timeout=PATIENCE))

    def _note(self, messages: list[tuple[str, torch.Tensor, int]]) -> None:
        self.states.append(self.x.tolist())
        call = []
        for what, tensor, peer in messages:
            offset = (tensor.data_ptr() - self.x.data_ptr()) // self.x.itemsize
            start = offset if 0 <= offset < self.size else 0  # a copy: of all of x
            call.append((what, peer, start, start + len(tensor)))
        self.calls.append(call)


def run_in_threads(
    algorithm: Algorithm, size: int, before: Callable[[int, int], list[int]] | None = None
) -> list[NotedGroup]:
    """All ranks' groups after `algorithm`; `before(rank, size)` is what x holds if not its own."""
    pairs = [(a, b) for a in range(size) for b in range(size)]
    mailboxes: dict[tuple[int, int], SimpleQueue] = {pair: SimpleQueue() for pair in pairs}
    groups = [NotedGroup(rank, size, mailboxes) for rank in range(size)]
    errors: list[BaseException] = []

    def run(group: NotedGroup) -> None:
        try:
            if before:
                group.x = torch.tensor(before(group.rank, size))
            algorithm(group, group.x, torch.add)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[group], daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return groups


def record(algorithm: Algorithm, ranks: int | Sequence[int] = 4, start: int = 4) -> Steps:
    """What `steps.record` records: `algorithm` on some number of ranks, or on several to choose."""
    runs = []
    for size in [ranks] if isinstance(ranks, int) else ranks:
        groups = run_in_threads(algorithm, size)
        recorded = [(group.calls, [*group.states, group.x.tolist()]) for group in groups]
        runs.append(Run(*put_in_steps(recorded)))
    return Steps(algorithm.__name__, runs, start)
