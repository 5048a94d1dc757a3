"""Broadcast and reduce: down and up a binomial tree, or along a line.

    broadcast       x[n] of the root → x[n] everywhere
    reduce          x[n]{partial} → x[n] at the root

A tree takes ⌈log₂ N⌉ steps and a line N − 1, and both send each array N − 1 times in all. Sums are
made in x's dtype, and each is rounded to it.
"""

from typing import Protocol

from distributed.all_reduce import Array, Combine, Sent, Wire, others


def tree_reduce(wire: Wire, x: Array, combine: Combine, root: int = 0) -> None:
    """x[n]{partial over ranks} → x[n] of rank `root`, up a binomial tree; the others' x is spent.

    ⌈log₂ N⌉ steps. Every rank but the root sends n elements, once (Thakur et al. 2005, §4).
    """
    position = (wire.rank - root) % wire.size  # as if the root were rank 0
    incoming = wire.empty_like(x)
    for child in children(position, wire.size):
        combine(x, wire.receive(incoming, (child + root) % wire.size), out=x)
    if position:
        wire.send(x, (parent(position) + root) % wire.size)


def tree_broadcast(wire: Wire, x: Array, root: int = 0) -> None:
    """x[n] of rank `root` → x[n] on every rank, down a binomial tree.

    ⌈log₂ N⌉ steps. A rank sends n elements to each of its children (Thakur et al. 2005, §4).
    """
    position = (wire.rank - root) % wire.size
    if position:
        wire.receive(x, (parent(position) + root) % wire.size)
    for child in reversed(children(position, wire.size)):
        wire.send(x, (child + root) % wire.size)


def parent(position: int) -> int:
    """The rank above in a binomial tree: without the lowest bit."""
    return position & (position - 1)


def children(position: int, ranks: int) -> list[int]:
    """The ranks below in a binomial tree: one more bit, below the lowest one."""
    lowest = position & -position or ranks
    bits = (1 << i for i in range(ranks.bit_length()))
    return [position + bit for bit in bits if bit < lowest and position + bit < ranks]


class Ranks(Wire, Protocol):
    """What these need of a group beside a wire."""

    def check_rank(self, name: str, rank: int) -> None: ...
    def announce(self, call: str, x: Array) -> None: ...
    def parts(self, whole: Array, part: Array = None) -> list[Array]: ...


def linear_broadcast(group: Ranks, x: Array, root: int = 0) -> None:
    """x[n] of the root → x[n] on every rank, sent to one after the other.

    N − 1 steps, where ⌈log₂ N⌉ would do (Chan et al. 2007). The root sends (N − 1)n elements.
    """
    group.check_rank("root", root)
    group.announce(f"broadcast from {root} by a line", x)
    if group.rank != root:
        group.receive(x, root)
        return
    for other in others(group):
        group.send(x, other)


def linear_reduce(group: Ranks, x: Array, combine: Combine, root: int = 0) -> None:
    """x[n]{partial over ranks} → x[n] at the root, which receives from one after the other.

    N − 1 steps, where ⌈log₂ N⌉ would do (Chan et al. 2007). All ranks but the root send n elements.
    """
    group.check_rank("root", root)
    group.announce(f"reduce to {root} by a line", x)
    if group.rank != root:
        group.send(x, root)
        return
    incoming = group.empty_like(x)
    for other in others(group):
        combine(x, group.receive(incoming, other), out=x)


def tree_broadcast_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] to each child."""
    messages = len(children(rank, ranks))
    return Sent(n * messages, messages)


def linear_broadcast_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] to each other rank, from the root; here and below the root is rank 0."""
    return Sent(n * (ranks - 1), ranks - 1) if rank == 0 else Sent(0, 0)


def reduce_sent(n: int, rank: int, ranks: int) -> Sent:
    """By a line or a tree: each rank but the root passes on its x[n], once."""
    return Sent(n, 1) if rank else Sent(0, 0)
