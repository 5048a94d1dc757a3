"""The other collectives: from one rank, to one rank, and from all to all.

    scatter         x[N·s] at the root → out[s], a different part on each rank
    gather          x[s] of each rank → out[N·s] at the root
    reduce_scatter  x[N·s]{partial} → out[s], a different part on each rank
    all_gather      x[s] of each rank → out[N·s] everywhere
    all_to_all      x[N·s] → out[N·s]: part j of rank i becomes part i of rank j

All of them are made of messages, without an array library. Together with all-reduce, and with
broadcast and reduce (`trees`), these are the collectives of data parallelism. `SENT` has a formula
for what each rank sends, where n is the size of the larger of x and out. Sums are made in x's
dtype, and each is rounded to it.
"""

from collections.abc import Callable

from distributed.all_reduce import (
    Array,
    Combine,
    Sent,
    messages,
    others,
    ring_all_gather,
    ring_reduce_scatter,
)
from distributed.trees import Ranks, linear_broadcast_sent, reduce_sent, tree_broadcast_sent


def scatter(group: Ranks, x: Array, out: Array, root: int = 0) -> None:
    """x[N·s] at the root → out[s]: rank r gets part r.

    N − 1 steps. The root sends (N − 1)s elements, a message to each other rank (MPI 4.0, §6.6).
    """
    group.check_rank("root", root)
    parts = group.parts(x, out) if group.rank == root else []
    group.announce(f"scatter from {root}", out)
    if group.rank != root:
        group.receive(out, root)
        return
    for other in others(group):
        group.send(parts[other], other)
    group.copy(parts[root], out)


def gather(group: Ranks, x: Array, out: Array, root: int = 0) -> None:
    """x[s] of each rank → out[N·s] at the root, in rank order; elsewhere out is left alone.

    N − 1 steps. Every rank but the root sends s elements, in one message (MPI 4.0, §6.5).
    """
    group.check_rank("root", root)
    parts = group.parts(out, x) if group.rank == root else []
    group.announce(f"gather to {root}", x)
    if group.rank != root:
        group.send(x, root)
        return
    for other in others(group):
        group.receive(parts[other], other)
    group.copy(x, parts[root])


def reduce_scatter(group: Ranks, x: Array, out: Array, combine: Combine) -> None:
    """x[N·s]{partial over ranks} → out[s] by a ring: N − 1 steps, half an all-reduce. x is spent.

    Each rank sends (N − 1)s elements (Patarasuk and Yuan 2009, §3).
    """
    parts = group.parts(x, out)
    group.announce("reduce_scatter by a ring", x)
    ring_reduce_scatter(group, parts, combine)
    group.copy(parts[group.rank], out)


def all_gather(group: Ranks, x: Array, out: Array) -> None:
    """x[s] of each rank → out[N·s] by a ring: N − 1 steps, the other half of an all-reduce.

    Each rank sends (N − 1)s elements (Patarasuk and Yuan 2009, §3).
    """
    parts = group.parts(out, x)
    group.announce("all_gather by a ring", x)
    group.copy(x, parts[group.rank])
    ring_all_gather(group, parts)


def all_to_all(group: Ranks, x: Array, out: Array) -> None:
    """x[N·s] → out[N·s]: part j of rank i becomes part i of rank j.

    N − 1 steps: in step k, s elements to rank r + k, and s from rank r − k (Thakur et al.
    2005, §4: pairwise exchange).
    """
    give = group.parts(x)
    get = group.parts(out, give[0])
    group.announce("all_to_all", x)
    group.copy(give[group.rank], get[group.rank])
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(give[to], to, get[source], source)


def scatter_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of x[n], a part x[n/N] to each other rank, from the root."""
    return Sent(n * (ranks - 1) // ranks, ranks - 1) if rank == 0 else Sent(0, 0)


def gather_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of out[n], one's own x[n/N] to the root."""
    return Sent(n // ranks, 1) if rank else Sent(0, 0)


def ring_half_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of x[n] (or, to gather, of out[n]), all parts of n/N but one, in messages of PIECE."""
    return Sent(n * (ranks - 1) // ranks, messages(n // ranks) * (ranks - 1))


def all_to_all_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of x[n], all parts x[n/N] but one's own, a message each."""
    return Sent(n * (ranks - 1) // ranks, ranks - 1)


SENT: dict[tuple[str, str], Callable[[int, int, int], Sent]] = {
    ("broadcast", "linear"): linear_broadcast_sent,
    ("broadcast", "tree"): tree_broadcast_sent,
    ("reduce", "linear"): reduce_sent,
    ("reduce", "tree"): reduce_sent,
    ("scatter", "linear"): scatter_sent,
    ("gather", "linear"): gather_sent,
    ("reduce_scatter", "ring"): ring_half_sent,
    ("all_gather", "ring"): ring_half_sent,
    ("all_to_all", "pairwise"): all_to_all_sent,
}
