"""Trees: broadcast and reduce down and up one, and an all-reduce along two at the same time.

    broadcast       x[n] of the root → x[n] everywhere
    reduce          x[n]{partial over ranks} → x[n] at the root
    double_tree     x[n]{partial over ranks} → x[n], equal to the bit on every rank

A binomial tree takes ⌈log₂ N⌉ steps and a line N − 1, and both send each array N − 1 times in all.
Half of the ranks in a tree are leaves, which pass no result on. In a second tree, these ranks are
the inner nodes, so two trees with half of the array each have as few steps as a tree, and as few
bytes as a ring. Sources: Sanders, Speck and Träff 2009; the trees of NCCL 2.4. Sums are made in x's
dtype, and each is rounded to it.
"""

from itertools import zip_longest
from typing import Protocol

from distributed.all_reduce import Array, Combine, Sent, Wire, cut_up, messages, others, pieces
from distributed.runtime.script import run_script


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
    count = len(children(rank, ranks))
    return Sent(n * count, count)


def linear_broadcast_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] to each other rank, from the root; here and below the root is rank 0."""
    return Sent(n * (ranks - 1), ranks - 1) if rank == 0 else Sent(0, 0)


def reduce_sent(n: int, rank: int, ranks: int) -> Sent:
    """By a line or a tree: each rank but the root passes on its x[n], once."""
    return Sent(n, 1) if rank else Sent(0, 0)


def double_tree(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: each half goes up its tree in pieces, and down again.

    About 2 log₂ N steps. A rank sends at most 2n elements: in each tree n/2 to the rank above and
    to each one below. There are 2⌈log₂ N⌉ roundings, as two arrays come from below at each step.
    """
    halves = [pieces(half) for half in cut_up(x, 2)]
    trees = [links(wire.rank, wire.size, tree) for tree in (0, 1)]
    incoming = wire.empty_like(halves[1][0])
    for both in zip_longest(*halves):  # alternate, so that both trees are busy
        for piece, (above, below) in zip(both, trees, strict=True):
            if piece is not None:
                for child in below:
                    combine(piece, wire.receive(incoming[: len(piece)], child), out=piece)
                if above is not None:
                    wire.send(piece, above)
    for both in zip_longest(*halves):
        for piece, (above, below) in zip(both, trees, strict=True):
            if piece is not None:
                if above is not None:
                    wire.receive(piece, above)
                for child in below:
                    wire.send(piece, child)


def links(rank: int, ranks: int, tree: int) -> tuple[int | None, list[int]]:
    """The rank above (None for the root) and the ranks below in the first or the second tree.

    Odd ranks are leaves in the first. The second is its mirror image, or shifted by 1 for odd N.
    """
    rank_at = [*range(ranks)]
    if tree == 1:
        rank_at = rank_at[::-1] if ranks % 2 == 0 else [*rank_at[1:], rank_at[0]]
    above = {rank_at[p]: rank_at[up(p, ranks)] for p in range(1, ranks)}
    return above.get(rank), [r for r in range(ranks) if above.get(r) == rank]


def up(position: int, ranks: int) -> int:
    """The parent's position in an in-order binary tree: lower on one side, higher on the other."""
    lowest = position & -position
    above = (position ^ lowest) | (lowest << 1)
    return above if above < ranks else position ^ lowest


def double_tree_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n/2] to each link of each tree: up to the rank above, down to those below."""
    elements = count = 0
    for tree, length in enumerate([n // 2, n - n // 2]):
        above, below = links(rank, ranks, tree)
        times = len(below) + (above is not None)
        elements, count = elements + times * length, count + times * messages(length)
    return Sent(elements, count)


def main(ranks: int = 6, n: int = 1000) -> None:
    """Show both trees, and compare what each rank sends with the formula."""
    from distributed import launch
    from distributed.workbench.measure import count

    counted = launch(count, n, double_tree, ranks=ranks)
    for rank, (elements, _) in enumerate(counted):
        (above, below), (above2, below2) = (links(rank, len(counted), tree) for tree in (0, 1))
        print(
            f"rank {rank}: above {above}, below {below}; above {above2}, below {below2}; "
            f"sent {elements} elements"
        )
    assert counted == [double_tree_sent(n, rank, len(counted)) for rank in range(len(counted))]


if __name__ == "__main__":
    run_script(main)
