"""All-reduce, five ways: each rank has an array, and every rank wants the sum of all of them.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Each algorithm is written on messages between two ranks. What it sends is known exactly, and its
formula stands beside it: in numbers (not bytes) for an array of n, for each of N ranks.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from distributed.group import Group, check_op
from distributed.script import run_script
from distributed.trace import Trace
from distributed.transport import Array, as_tensor
from distributed.world import launch

Combine = Callable[..., Any]  # combine(a, b, out=a): a[n] ← a[n] with b[n]
COMBINE: dict[str, Combine] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


def all_reduce(group: Group, x: Array, op: str = "sum", algorithm: str = "ring") -> Array:
    """x[...]{partial over ranks} → x[...], in place; `op` as in COMBINE, `algorithm` in ALGORITHMS.

    Raises ValueError for another op or algorithm, and for the average of integers.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    with as_tensor(x) as tensor:
        check_op(op, COMBINE, tensor)
        flat = tensor.view(-1)
        ALGORITHMS[algorithm](group, flat, COMBINE[op])
        if op == "avg":
            flat /= group.size
    return x


def bounds(n: int, parts: int) -> list[int]:
    """Where to cut n numbers into parts that differ by one at most: part i is [i] to [i + 1]."""
    return [n * i // parts for i in range(parts + 1)]


def central(group: Group, x: torch.Tensor, combine: Combine) -> None:
    """All arrays go to rank 0, which combines them and sends the result back: a master.

    2(N − 1) steps, for rank 0 has one link. It receives and sends (N − 1)n, the others n.
    """
    if group.rank == 0:
        incoming = torch.empty_like(x)
        for other in range(1, group.size):
            combine(x, group.receive(incoming, other), out=x)
        for other in range(1, group.size):
            group.send(x, other)
    else:
        group.send(x, 0)
        group.receive(x, 0)


def central_sent(n: int, rank: int, ranks: int) -> int:
    return n if rank else n * (ranks - 1)


def naive(group: Group, x: torch.Tensor, combine: Combine) -> None:
    """Everyone sends its array to everyone, and combines all of them, in the order of ranks.

    N − 1 steps. Each rank sends (N − 1)n and holds N arrays.
    """
    arrays = {group.rank: x.clone()}
    for step in range(1, group.size):
        right, left = (group.rank + step) % group.size, (group.rank - step) % group.size
        arrays[left] = group.exchange(arrays[group.rank], right, torch.empty_like(x), left)
    x.copy_(arrays[0])
    for rank in range(1, group.size):
        combine(x, arrays[rank], out=x)


def naive_sent(n: int, rank: int, ranks: int) -> int:
    return n * (ranks - 1)


def tree(group: Group, x: torch.Tensor, combine: Combine) -> None:
    """Combine up a binomial tree to rank 0, then broadcast down the same tree.

    2⌈log₂ N⌉ steps. A rank sends n to its parent and n to each child (Thakur et al. 2005, §3).
    """
    incoming = torch.empty_like(x)
    for child in children(group.rank, group.size):
        combine(x, group.receive(incoming, child), out=x)
    if group.rank:
        parent = group.rank & (group.rank - 1)  # without its lowest bit
        group.send(x, parent)
        group.receive(x, parent)
    for child in reversed(children(group.rank, group.size)):
        group.send(x, child)


def children(rank: int, ranks: int) -> list[int]:
    """The ranks below `rank` in a binomial tree: it, with one more bit below its lowest one."""
    lowest = rank & -rank or ranks
    bits = (1 << i for i in range(ranks.bit_length()))
    return [rank + bit for bit in bits if bit < lowest and rank + bit < ranks]


def tree_sent(n: int, rank: int, ranks: int) -> int:
    return n * (len(children(rank, ranks)) + (rank > 0))


def ring(group: Group, x: torch.Tensor, combine: Combine) -> None:
    """Reduce-scatter around a ring, then all-gather around it (Patarasuk and Yuan 2009, §3).

    2(N − 1) steps. Each rank sends 2n(N − 1)/N, which no algorithm can go below.
    """
    cut = bounds(x.numel(), group.size)
    parts = [x[start:end] for start, end in pairwise(cut)]
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for step in range(group.size - 1):  # add to the part that travels past
        gone = parts[(group.rank - step) % group.size]
        part = parts[(group.rank - step - 1) % group.size]
        combine(part, group.exchange(gone, right, torch.empty_like(part), left), out=part)
    for step in range(group.size - 1):  # pass on the part that is complete
        done = parts[(group.rank - step + 1) % group.size]
        group.exchange(done, right, parts[(group.rank - step) % group.size], left)


def ring_sent(n: int, rank: int, ranks: int) -> int:
    cut = bounds(n, ranks)
    kept = [cut[(rank + i) % ranks + 1] - cut[(rank + i) % ranks] for i in (1, 2)]
    return 2 * n - sum(kept) if ranks > 1 else 0


def halving_doubling(group: Group, x: torch.Tensor, combine: Combine) -> None:
    """Exchange halves, then quarters …; then gather them back (Rabenseifner 2004, §2).

    2 log₂ N steps; a power of two sends 2n(N − 1)/N. Of other N, some ranks hand their array to a
    neighbour first, stand aside, and get the result last: two steps and up to n more.
    """
    aside = group.size - power_of_two(group.size)
    if group.rank < 2 * aside and group.rank % 2 == 0:
        group.send(x, group.rank + 1)
        group.receive(x, group.rank + 1)
        return
    if group.rank < 2 * aside:
        combine(x, group.receive(torch.empty_like(x), group.rank - 1), out=x)
    place = group.rank // 2 if group.rank < 2 * aside else group.rank - aside
    cut = bounds(x.numel(), group.size - aside)

    steps = [1 << i for i in range((group.size - aside).bit_length() - 1)]
    for half in reversed(steps):
        partner, mine, theirs = halves(place, half, aside)
        keep, give = (x[cut[start] : cut[start + half]] for start in (mine, theirs))
        combine(keep, group.exchange(give, partner, torch.empty_like(keep), partner), out=keep)
    for half in steps:
        partner, mine, theirs = halves(place, half, aside)
        have, want = (x[cut[start] : cut[start + half]] for start in (mine, theirs))
        group.exchange(have, partner, want, partner)
    if group.rank < 2 * aside:
        group.send(x, group.rank - 1)


def power_of_two(ranks: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (ranks.bit_length() - 1)


def halves(place: int, half: int, aside: int) -> tuple[int, int, int]:
    """The partner's rank, and the first parts of my half and of the partner's half."""
    other = place ^ half
    partner = 2 * other + 1 if other < aside else other + aside
    return partner, place // half * half, other // half * half


def halving_doubling_sent(n: int, rank: int, ranks: int) -> int:
    aside = ranks - power_of_two(ranks)
    if rank < 2 * aside and rank % 2 == 0:
        return n
    place = rank // 2 if rank < 2 * aside else rank - aside
    cut = bounds(n, ranks - aside)
    sent = n if rank < 2 * aside else 0
    for half in (1 << i for i in range(power_of_two(ranks).bit_length() - 1)):
        for start in halves(place, half, aside)[1:]:
            sent += cut[start + half] - cut[start]
    return sent


ALGORITHMS: dict[str, Callable[[Group, torch.Tensor, Combine], None]] = {
    function.__name__: function for function in (central, naive, tree, ring, halving_doubling)
}
SENT: dict[str, Callable[[int, int, int], int]] = {
    "central": central_sent,
    "naive": naive_sent,
    "tree": tree_sent,
    "ring": ring_sent,
    "halving_doubling": halving_doubling_sent,
}


def count(group: Group, n: int, algorithm: str) -> tuple[int, int]:
    """All-reduce n float32 numbers; the bytes and messages that this rank really sent."""
    x = torch.full((n,), float(group.rank))
    group.trace = trace = Trace(group.rank)
    all_reduce(group, x, algorithm=algorithm)
    group.trace = None
    assert (x == sum(range(group.size))).all()
    return trace.sent, trace.messages


def main(ranks: int = 4, n: int = 1000) -> None:
    """Count what every algorithm sends, beside its formula."""
    counts = launch(lambda group: {a: count(group, n, a) for a in SENT}, ranks=ranks)
    print("bytes that ranks 0, 1, … sent")
    for algorithm, sent in SENT.items():
        counted = [of_rank[algorithm][0] for of_rank in counts]
        predicted = [4 * sent(n, rank, len(counts)) for rank in range(len(counts))]
        print(f"{algorithm:16} counted {counted}   predicted {predicted}")
        assert counted == predicted


if __name__ == "__main__":
    run_script(main)
