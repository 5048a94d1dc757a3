"""What all algorithms of all-reduce share: parts of an array, how to combine two, what is sent.

An algorithm is a function of a wire, this rank's x[n] and the way to combine: x is changed in
place. Beside it stands its formula: what a rank sends, in elements and in messages. None of this
knows an array library: the wire makes arrays and sends them, the caller says how to combine two.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

Array = Any  # what the wire's messages carry: a tensor, a memoryview, … with slices and a length
Combine = Callable[..., Any]  # combine(a, b, out=a): a[n] ← a[n] with b[n]
PIECE = 1 << 20  # elements of one message of a long part: work on it while the next one comes


class Wire(Protocol):
    """Messages of one rank with the others, whatever carries them: all that an algorithm needs.

    `Transport` says what each of these does; a `Group` is one, with collectives.
    """

    rank: int
    size: int

    def send(self, x: Array, to: int) -> None: ...
    def receive(self, x: Array, source: int) -> Array: ...
    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array: ...
    def relay(
        self,
        outgoing: Sequence[Array],
        to: int,
        incoming: Sequence[Array],
        source: int,
        combine: Combine | None = None,
        adds: int = 0,
    ) -> None: ...
    def empty_like(self, x: Array) -> Array: ...
    def copy(self, x: Array, into: Array) -> Array: ...


Algorithm = Callable[[Wire, Array, Combine], None]


class Sent(NamedTuple):
    """What one rank sends: elements of the array's dtype, and messages."""

    elements: int
    messages: int


def cut_up(x: Array, parts: int) -> list[Array]:
    """Views of x[n] that differ in length by one at most: part i is x[n·i/N : n·(i + 1)/N]."""
    return [x[start:end] for start, end in pairwise(bounds(len(x), parts))]


def pieces(x: Array) -> list[Array]:
    """Views of x[n], of PIECE each, the last one shorter; of nothing, one that is empty."""
    return [x[start : start + PIECE] for start in range(0, max(1, len(x)), PIECE)]


def messages(n: int) -> int:
    """In how many `pieces` x[n] is sent."""
    return max(1, -(-n // PIECE))


def bounds(n: int, parts: int) -> list[int]:
    """Where to cut n elements into parts: part i is [i] to [i + 1]."""
    return [n * i // parts for i in range(parts + 1)]


def others(wire: Wire) -> list[int]:
    """All ranks but this one, in order."""
    return [rank for rank in range(wire.size) if rank != wire.rank]
