"""Group of ranks in a tab: messages over shared memory, and collectives made of messages.

An array is an `array.array`, or a `memoryview` of one, which can be sliced without a copy.
"""

import operator
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

from distributed.all_reduce import ring
from distributed.runtime.trace import Trace
from distributed.trees import tree_broadcast
from distributed.workbench.threads import ThreadGroup

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "avg": operator.add,
    "max": max,
    "min": min,
    "product": operator.mul,
}


class Carrier(Protocol):
    """Transport of bytes between ranks: mailboxes in shared memory, or ranks that take turns."""

    def send(self, to: int, data: memoryview) -> None: ...
    def receive(self, source: int, into: memoryview) -> None: ...
    def exchange(self, to: int, data: memoryview, source: int, into: memoryview) -> None: ...


def numbers_of(x: Any) -> memoryview:
    """x[n] as a memoryview on the same memory; TypeError if x isn't an array."""
    try:
        view = memoryview(x)
    except TypeError:
        kind = type(x).__name__
        raise TypeError(f"x must be an array.array here in the tab, not {kind}") from None
    if view.readonly:
        raise ValueError("x is a read-only array, and the result is written into it: copy it")
    return view


class Group(ThreadGroup):
    """One of several ranks in a tab. If `trace` is set to a `Trace`, messages are counted there."""

    trace: Trace | None  # type: ignore[assignment]

    def __init__(self, rank: int, size: int, carrier: Carrier):
        self.rank, self.size = rank, size
        self.carrier = carrier
        self.trace = None

    def send(self, x: Any, to: int) -> None:
        """Send x[n] to rank `to`, which must receive it; may wait until it does."""
        self._check_peer("to", to)
        view = memoryview(x)
        with self._traced("send"):
            self.carrier.send(to, view)
            self._count(view, None)

    def receive(self, x: Any, source: int) -> Any:
        """Receive x[n] from rank `source`, in place."""
        self._check_peer("source", source)
        view = numbers_of(x)
        with self._traced("receive"):
            self.carrier.receive(source, view)
            self._count(None, view)
        return x

    def exchange(self, outgoing: Any, to: int, incoming: Any, source: int) -> Any:
        """Send `outgoing` to one rank while filling `incoming` from another (or the same) one."""
        self._check_peer("to", to)
        self._check_peer("source", source)
        out, into = memoryview(outgoing), numbers_of(incoming)
        with self._traced("exchange"):
            self.carrier.exchange(to, out, source, into)
            self._count(out, into)
        return incoming

    def empty_like(self, x: Any) -> memoryview:
        """A new array of x's length and type, to receive into."""
        view = memoryview(x)
        return memoryview(array(view.format, bytes(view.nbytes)))

    # ------------------------------------------------------------ collectives

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        """x[n]{partial over ranks} → x[n], equal on every rank, around a ring."""
        return self.reduce_by(ring, x, op)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """x[n] of rank `root` → x[n] on every rank, down a tree."""
        self.check_rank("root", root)
        tree_broadcast(self, numbers_of(x), root)
        return x

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_reduce(array("b", [0]))

    def reduce_by(
        self, algorithm: Callable[..., None], x: Any, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[n]{partial over ranks} → x[n] by `algorithm(wire, x, combine)`, in x's own type."""
        if async_op:
            raise ValueError("async_op=True: a rank in the tab has no second thread")
        if op not in OPS:
            raise ValueError(f"op={op!r}: choose one of {', '.join(OPS)}")
        view: Any = numbers_of(x)
        if op == "avg" and view.format not in ("f", "d"):
            raise ValueError(f"op='avg' needs floating-point numbers, x has type {view.format!r}")
        of_two = OPS[op]

        def combine(a: memoryview, b: memoryview, out: memoryview) -> None:
            for i, (mine, theirs) in enumerate(zip(a, b, strict=True)):
                out[i] = of_two(mine, theirs)

        algorithm(self, view, combine)
        if op == "avg":
            for i, value in enumerate(view.tolist()):
                view[i] = value / self.size
        return x

    def _check_peer(self, name: str, rank: int) -> None:
        self.check_rank(name, rank)
        if rank == self.rank:
            raise ValueError(f"{name}={rank}: that is this rank itself")

    def _traced(self, name: str) -> Any:
        return self.trace.span(name, "communication") if self.trace else nullcontext()

    def _count(self, sent: memoryview | None, received: memoryview | None) -> None:
        if self.trace and sent is not None:
            self.trace.count_sent(sent.nbytes)
        if self.trace and received is not None:
            self.trace.count_received(received.nbytes)
