"""All-reduce around a ring: each rank has an array, and every rank gets the sum of all of them.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

The algorithm uses only messages between two ranks, and no array library. The wire makes arrays and
sends them, and the caller chooses how to combine two. Next to the algorithm, a formula gives the
elements (not bytes) and messages that a rank sends, for x[n] on `rank` of N `ranks`.
`simple_all_reduces`, `halving_doubling`, and `trees` have five other algorithms.

Messages have x's dtype, so sums are made in it and rounded to it. Each algorithm's docstring says
how many roundings a number goes through. After k of them, a sum is off by at most k/2 units in the
last place of Σ|x|.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from distributed.runtime.script import run_script

Array = Any  # what the wire's messages carry: a tensor, a memoryview, … with slices and a length
Combine = Callable[..., Any]  # combine(a, b, out=a): a[n] ← a[n] with b[n]
PIECE = 1 << 20  # elements of one message of a long part: work on it while the next one comes


class Wire(Protocol):
    """Messages of one rank with the others, whatever carries them; an algorithm needs no more.

    `Transport` explains each of these. A `Group` is a wire that also has collectives.
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


def others(wire: Wire) -> list[int]:
    """All ranks but this one, in order."""
    return [rank for rank in range(wire.size) if rank != wire.rank]


def ring(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: reduce-scatter around a ring, then all-gather around it.

    2(N − 1) steps. Each rank sends 2n(N − 1)/N elements, the least for any algorithm on messages
    (Patarasuk and Yuan 2009, §3). N − 1 roundings.
    """
    parts, ranks = cut_up(x, wire.size), wire.size
    # Two rounds: parts are added up in the first, and complete parts arrive in the second.
    route = [parts[(wire.rank - step) % ranks] for step in range(1, 2 * ranks)]
    pass_around(wire, route, combine, adds=ranks - 1)


def cut_up(x: Array, parts: int) -> list[Array]:
    """Views of x[n] that differ in length by one at most: part i is x[n·i/N : n·(i + 1)/N]."""
    return [x[start:end] for start, end in pairwise(bounds(len(x), parts))]


def bounds(n: int, parts: int) -> list[int]:
    """Where to cut n elements into parts: part i is [i] to [i + 1]."""
    return [n * i // parts for i in range(parts + 1)]


def ring_reduce_scatter(wire: Wire, parts: list[Array], combine: Combine) -> None:
    """parts[N][n/N]{partial over ranks} → parts[rank] is complete; the others are overwritten.

    N − 1 steps of n/N elements from each rank.
    """
    # Backwards around the ring, and our own part last: a negative index counts from the end.
    route = [parts[wire.rank - step] for step in range(1, wire.size + 1)]
    pass_around(wire, route, combine, adds=wire.size - 1)


def ring_all_gather(wire: Wire, parts: list[Array]) -> None:
    """parts[rank] of each rank → all of parts[N][n/N] on every rank.

    N − 1 steps of n/N elements from each rank.
    """
    pass_around(wire, [parts[wire.rank - step] for step in range(wire.size)])


def pass_around(
    wire: Wire, route: Sequence[Array], combine: Combine | None = None, adds: int = 0
) -> None:
    """Send the first part of a route to the right, and each later one once it came from the left.

    So every rank's route is that of its left neighbor, one part later. The first `adds` parts that
    arrive are combined with the rank's own, and all later ones replace them. Long parts are sent in
    messages of PIECE elements.
    """
    right, left = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    cut = [pieces(part) for part in route]
    outgoing = [piece for part in cut[:-1] for piece in part]
    incoming = [piece for part in cut[1:] for piece in part]
    added = sum(len(part) for part in cut[1 : 1 + adds])
    wire.relay(outgoing, right, incoming, left, combine, added)


def pieces(x: Array) -> list[Array]:
    """Views of x[n] with PIECE elements each, the last one shorter; one empty view if n is 0."""
    return [x[start : start + PIECE] for start in range(0, max(1, len(x)), PIECE)]


def messages(n: int) -> int:
    """The number of `pieces` in which x[n] is sent."""
    return max(1, -(-n // PIECE))


def ring_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] twice, without its own part in the first round and its neighbor's in the second."""
    lengths = [end - start for start, end in pairwise(bounds(n, ranks))]
    own, right = lengths[rank], lengths[(rank + 1) % ranks]
    if ranks == 1:
        return Sent(0, 0)
    sent = 2 * sum(map(messages, lengths)) - messages(own) - messages(right)
    return Sent(2 * n - own - right, sent)


def main(ranks: int = 4, n: int = 1000) -> None:
    """Count what each rank sends, and compare with the formula."""
    from distributed import Group, launch
    from distributed.workbench.measure import count

    def count_ring(group: Group) -> tuple[int, int]:
        return count(group, n, ring)

    counted = [tuple(of_rank) for of_rank in launch(count_ring, ranks=ranks)]
    print("(elements, messages) that ranks 0, 1, … sent:", counted)
    assert counted == [ring_sent(n, rank, len(counted)) for rank in range(len(counted))]


if __name__ == "__main__":
    run_script(main)
