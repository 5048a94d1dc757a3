"""Double-tree all-reduce: as few steps as a tree, and as few bytes as a ring.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Half of the ranks in a binary tree are leaves, which pass no result on. In a second tree, these
ranks are the inner nodes. Each tree carries half of the array. Sources: Sanders, Speck and Träff
2009; the trees of NCCL 2.4.
"""

from itertools import zip_longest

from distributed.all_reduce import Array, Combine, Sent, Wire, cut_up, pieces
from distributed.all_reduce import messages as messages_of
from distributed.runtime.script import run_script


def double_tree(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: each half goes up its tree in pieces, and down again.

    About 2 log₂ N steps. A rank sends at most 2n elements: in each tree n/2 to the rank above and
    to each one below (Sanders, Speck and Träff 2009). There are 2⌈log₂ N⌉ roundings to x's dtype,
    because two arrays come from below at each step.
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

    In the first tree every odd rank is a leaf. The second tree is its mirror image or, if the
    number of ranks is odd, the same tree shifted by one: there the odd ranks are inner nodes.
    """

    def position(of: int) -> int:
        if tree == 0:
            return of
        return ranks - 1 - of if ranks % 2 == 0 else (of - 1) % ranks

    rank_at = {position(r): r for r in range(ranks)}
    above = {r: rank_at[up(position(r), ranks)] for r in range(ranks) if position(r) > 0}
    return above.get(rank), [r for r in range(ranks) if above.get(r) == rank]


def up(position: int, ranks: int) -> int:
    """The parent's position in an in-order binary tree: lower on one side, higher on the other."""
    lowest = position & -position
    above = (position ^ lowest) | (lowest << 1)
    return above if above < ranks else position ^ lowest


def double_tree_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n/2] to each link of each tree: up to the rank above, down to those below."""
    elements = messages = 0
    for tree, length in enumerate([n // 2, n - n // 2]):
        above, below = links(rank, ranks, tree)
        times = len(below) + (above is not None)
        elements += times * length
        messages += times * messages_of(length)
    return Sent(elements, messages)


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
