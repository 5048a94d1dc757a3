"""What all algorithms of all-reduce share: parts of an array, how to combine two, what is sent.

An algorithm is a function of a group, this rank's x[n] and the way to combine: x is changed in
place. Beside it stands its formula: what a rank sends, in numbers and in messages. None of this
knows an array library: the group makes arrays, sends them, and says how to combine two.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

Array = Any  # what the group's messages carry: a tensor, a memoryview, … with slices and a length
Combine = Callable[..., Any]  # combine(a, b, out=a): a[n] ← a[n] with b[n]
PIECE = 1 << 20  # numbers of one message of a long part: work on it while the next one comes


class Messages(Protocol):
    """What an algorithm needs of a group, whatever carries its messages: see `Transport`."""

    rank: int
    size: int

    def send(self, x: Array, to: int) -> None: ...
    def receive(self, x: Array, source: int) -> Array: ...
    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array: ...
    def exchanging(
        self, outgoing: Array, to: int, n: int, source: int, piece: int
    ) -> Iterator[tuple[slice, Array]]: ...
    def empty_like(self, x: Array) -> Array: ...
    def copy(self, x: Array, into: Array) -> Array: ...


Algorithm = Callable[[Messages, Array, Combine], None]


class Sent(NamedTuple):
    """What one rank sends: numbers of the array's dtype, and messages."""

    numbers: int
    messages: int


def cut_up(x: Array, parts: int) -> list[Array]:
    """Views of x[n] that differ in length by one at most: part i is x[n·i/N : n·(i + 1)/N]."""
    return [x[start:end] for start, end in pairwise(bounds(len(x), parts))]


def pieces(x: Array) -> list[Array]:
    """Views of x[n], of PIECE each, the last one shorter; of nothing, one that is empty."""
    return [x[start : start + PIECE] for start in range(0, max(1, len(x)), PIECE)]


def bounds(n: int, parts: int) -> list[int]:
    """Where to cut n numbers into parts: part i is [i] to [i + 1]."""
    return [n * i // parts for i in range(parts + 1)]


def others(group: Messages) -> list[int]:
    """All ranks but this one, in order."""
    return [rank for rank in range(group.size) if rank != group.rank]
