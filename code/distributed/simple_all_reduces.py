"""Three simple all-reduces: through rank 0, from every rank to every other, and along a tree.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

They send more than the ring of `all_reduce` and need fewer steps or messages. Sums are computed in
x's dtype, and each is rounded to it. Next to each algorithm is the formula for what a rank sends.
"""

from distributed.all_reduce import Array, Combine, Sent, Wire, others
from distributed.runtime.script import run_script
from distributed.trees import children, tree_broadcast, tree_reduce


def central(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: rank 0 receives all arrays, and sends the result back.

    2(N − 1) steps, because rank 0 has one link. It receives and sends (N − 1)n elements, the others
    n. A parameter server does the same (Dean et al. 2012). N − 1 roundings.
    """
    if wire.rank == 0:
        incoming = wire.empty_like(x)
        for other in others(wire):
            combine(x, wire.receive(incoming, other), out=x)
        for other in others(wire):
            wire.send(x, other)
    else:
        wire.send(x, 0)
        wire.receive(x, 0)


def central_sent(n: int, rank: int, ranks: int) -> Sent:
    """Rank 0 sends x[n] to every other rank; the others send it once, to rank 0."""
    return Sent(n, 1) if rank else Sent(n * (ranks - 1), ranks - 1)


def naive(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: every rank sends to every other, and combines in order.

    N − 1 steps: step k sends to r + k and receives from r − k (Thakur et al. 2005, §4: pairwise
    exchange). Rank order. Each rank sends (N − 1)n elements, holds N arrays. N − 1 roundings.
    """
    arrays = {wire.rank: wire.copy(x, wire.empty_like(x))}
    for step in range(1, wire.size):
        right, left = (wire.rank + step) % wire.size, (wire.rank - step) % wire.size
        arrays[left] = wire.exchange(arrays[wire.rank], right, wire.empty_like(x), left)
    wire.copy(arrays[0], x)
    for rank in range(1, wire.size):
        combine(x, arrays[rank], out=x)


def naive_sent(n: int, rank: int, ranks: int) -> Sent:
    """Every rank sends x[n] to every other rank."""
    return Sent(n * (ranks - 1), ranks - 1)


def tree(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n]: up a binomial tree to rank 0, and down the same tree.

    2⌈log₂ N⌉ steps. A rank sends n elements to its parent and n to each child (Thakur et al. 2005,
    §4). ⌈log₂ N⌉ roundings.
    """
    tree_reduce(wire, x, combine)
    tree_broadcast(wire, x)


def tree_sent(n: int, rank: int, ranks: int) -> Sent:
    """A rank sends x[n] to each child and, unless it is rank 0, to its parent."""
    links = len(children(rank, ranks)) + (rank > 0)
    return Sent(n * links, links)


def main(ranks: int = 4, n: int = 1000) -> None:
    """Compare what each of the three sends with its formula."""
    from distributed import Group, launch
    from distributed.workbench.measure import count

    both = {central: central_sent, naive: naive_sent, tree: tree_sent}

    def count_all(group: Group) -> list[tuple[int, int]]:
        return [count(group, n, algorithm) for algorithm in both]

    counts = launch(count_all, ranks=ranks)
    print("(elements, messages) that ranks 0, 1, … sent")
    for i, (algorithm, sent) in enumerate(both.items()):
        print(f"{algorithm.__name__:8}", counted := [tuple(of_rank[i]) for of_rank in counts])
        assert counted == [sent(n, rank, len(counts)) for rank in range(len(counts))]


if __name__ == "__main__":
    run_script(main)
