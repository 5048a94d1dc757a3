"""Transport between threads: ranks are threads and messages are lists, without any library.

An algorithm that runs here as well as between processes doesn't depend on tensors. An array is a
`memoryview` of an `array.array`, which can be sliced without a copy, as a tensor can.
"""

import threading
from array import array
from collections.abc import Callable, Sequence
from itertools import zip_longest
from queue import SimpleQueue
from typing import Any

from distributed.runtime.trace import Trace

Mailboxes = dict[tuple[int, int], "SimpleQueue[list[Any]]"]


PATIENCE = 10  # seconds; a rank that waits longer has a peer that doesn't send


def numbers(values: list[Any], kind: str = "q") -> memoryview:
    """x[n] of `values`; `kind` is a type code of `array.array`, "q" for integers."""
    return memoryview(array(kind, values))


def add(a: memoryview, b: memoryview, out: memoryview) -> None:
    """a[n] + b[n] → out[n], an element at a time."""
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        out[i] = x + y


class ThreadGroup:
    """One rank as a thread of this process: the methods of `Group` that algorithms need."""

    def __init__(self, rank: int, size: int, mailboxes: Mailboxes):
        self.rank, self.size = rank, size
        self.mailboxes = mailboxes  # (sender, receiver) → its messages, in order
        self.trace = Trace(rank)

    def send(self, x: memoryview, to: int) -> None:
        """Send a copy of x[n] to rank `to`, without waiting for it."""
        self.mailboxes[self.rank, to].put(x.tolist())
        self.trace.count_sent(x.nbytes)

    def receive(self, x: memoryview, source: int) -> memoryview:
        """Fill x[n] with the message from rank `source`."""
        values = self.mailboxes[source, self.rank].get(timeout=PATIENCE)
        for i, value in enumerate(values):
            x[i] = value
        self.trace.count_received(x.nbytes)
        return x

    def exchange(
        self, outgoing: memoryview, to: int, incoming: memoryview, source: int
    ) -> memoryview:
        """Send `outgoing` to one rank and fill `incoming` from another (or the same) one."""
        self.send(outgoing, to)
        return self.receive(incoming, source)

    def relay(
        self,
        outgoing: Sequence[memoryview],
        to: int,
        incoming: Sequence[memoryview],
        source: int,
        combine: Callable[..., Any] | None = None,
        adds: int = 0,
    ) -> None:
        """Send outgoing[i] while a message arrives for incoming[i]; see `Transport.relay`."""
        for i, (leaves, x) in enumerate(zip_longest(outgoing, incoming)):
            if x is None:
                self.send(leaves, to)
                continue
            arrived = self.empty_like(x) if i < adds else x
            if leaves is None:
                self.receive(arrived, source)
            else:
                self.exchange(leaves, to, arrived, source)
            if combine and i < adds:
                combine(x, arrived, out=x)

    def empty_like(self, x: memoryview) -> memoryview:
        """An array like x, to receive into."""
        return numbers([0] * len(x), x.format)

    def copy(self, x: memoryview, into: memoryview) -> memoryview:
        """x[n] → into[n]."""
        memoryview(into)[:] = x
        return into

    def parts(self, whole: memoryview, part: memoryview | None = None) -> list[memoryview]:
        """Views of whole[N·s], one per rank: [s] each, or as long as `part`."""
        whole = memoryview(whole)
        s = len(whole) // self.size if part is None else len(part)
        if len(whole) != s * self.size:
            raise ValueError(f"x and out: {self.size} parts of {s} do not make {len(whole)}")
        return [whole[rank * s : (rank + 1) * s] for rank in range(self.size)]

    def check_rank(self, name: str, rank: int) -> None:
        """Raise ValueError, with the argument's name, for a rank out of range."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: the ranks are 0 to {self.size - 1}")

    def announce(self, call: str, x: memoryview) -> None:
        """Other groups check here that all ranks call the same collective."""


def run_in_threads(
    fn: Callable[[Any], Any], ranks: int, make_group: Callable[..., ThreadGroup] = ThreadGroup
) -> list[Any]:
    """Call `fn(group)` in `ranks` threads; the results in rank order, or the first error."""
    mailboxes: Mailboxes = {(a, b): SimpleQueue() for a in range(ranks) for b in range(ranks)}
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = fn(make_group(rank, ranks, mailboxes))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:
            thread.join(0.05)
    if errors:
        raise errors[0]
    return results
