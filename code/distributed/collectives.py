"""The other collectives: from one rank, to one rank, and from all to all.

    broadcast       x[n] of the root → x[n] everywhere
    reduce          x[n]{partial} → x[n] at the root
    scatter         x[N·s] at the root → out[s], another part on each rank
    gather          x[s] of each rank → out[N·s] at the root
    reduce_scatter  x[N·s]{partial} → out[s], another part on each rank
    all_gather      x[s] of each rank → out[N·s] everywhere
    all_to_all      x[N·s] → out[N·s]: part j of rank i becomes part i of rank j

All are written on messages. With the all-reduce of the chapter before, these are the collectives
that data parallelism is made of. `SENT` says what each rank sends: n is the larger of x and out.
Sums are made in x's dtype, and each is rounded to it.
"""

from collections.abc import Callable

import torch

from distributed import Group, launch
from distributed.all_reduce import (
    ALGORITHMS,
    children,
    ring_all_gather,
    ring_reduce_scatter,
    tree_broadcast,
    tree_reduce,
)
from distributed.hierarchical import HierarchicalGroup
from distributed.parts import PIECE, Combine, Sent, cut_up, others
from distributed.runtime.script import run_script, to_bytes
from distributed.shared_memory import SharedGroup

Work = Callable[[Group, torch.Tensor, torch.Tensor], object]  # work(group, x, out)


def in_parts(group: Group, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
    """Views of whole[N·s], one for each rank, as large as part[s]; ValueError if it has others."""
    group.check_parts(whole, part)
    if not whole.is_contiguous():
        raise ValueError(f"x and out: {list(whole.shape)} has gaps, give it as .contiguous()")
    return cut_up(whole.view(-1), group.size)


def linear_broadcast(group: Group, x: torch.Tensor, root: int = 0) -> None:
    """x[n] of the root → x[n] on every rank, sent to one after the other.

    N − 1 steps, where ⌈log₂ N⌉ would do (Chan et al. 2007). The root sends (N − 1)n numbers.
    """
    group.check_rank("root", root)
    group.announce(f"broadcast from {root} by a line", x)
    if group.rank != root:
        group.receive(x, root)
        return
    for other in others(group):
        group.send(x, other)


def linear_reduce(group: Group, x: torch.Tensor, combine: Combine, root: int = 0) -> None:
    """x[n]{partial over ranks} → x[n] at the root, which receives from one after the other.

    N − 1 steps, where ⌈log₂ N⌉ would do (Chan et al. 2007). All ranks but the root send n numbers.
    """
    group.check_rank("root", root)
    group.announce(f"reduce to {root} by a line", x)
    if group.rank != root:
        group.send(x, root)
        return
    incoming = torch.empty_like(x)
    for other in others(group):
        combine(x, group.receive(incoming, other), out=x)


def scatter(group: Group, x: torch.Tensor, out: torch.Tensor, root: int = 0) -> None:
    """x[N·s] at the root → out[s]: rank r gets part r.

    N − 1 steps. The root sends (N − 1)s numbers, a message to each other rank (MPI 4.0, §6.6).
    """
    group.check_rank("root", root)
    parts = in_parts(group, x, out) if group.rank == root else []
    group.announce(f"scatter from {root}", out)
    if group.rank != root:
        group.receive(out, root)
        return
    for other in others(group):
        group.send(parts[other], other)
    out.view(-1).copy_(parts[root])


def gather(group: Group, x: torch.Tensor, out: torch.Tensor, root: int = 0) -> None:
    """x[s] of each rank → out[N·s] at the root, in rank order; elsewhere out is left alone.

    N − 1 steps. Every rank but the root sends s numbers, in one message (MPI 4.0, §6.5).
    """
    group.check_rank("root", root)
    parts = in_parts(group, out, x) if group.rank == root else []
    group.announce(f"gather to {root}", x)
    if group.rank != root:
        group.send(x, root)
        return
    for other in others(group):
        group.receive(parts[other], other)
    parts[root].copy_(x.view(-1))


def reduce_scatter(group: Group, x: torch.Tensor, out: torch.Tensor, combine: Combine) -> None:
    """x[N·s]{partial over ranks} → out[s] by a ring: N − 1 steps, half an all-reduce. x is spent.

    Each rank sends (N − 1)s numbers (Patarasuk and Yuan 2009, §3).
    """
    parts = in_parts(group, x, out)
    group.announce("reduce_scatter by a ring", x)
    ring_reduce_scatter(group, parts, combine)
    out.view(-1).copy_(parts[group.rank])


def all_gather(group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
    """x[s] of each rank → out[N·s] by a ring: N − 1 steps, the other half of an all-reduce.

    Each rank sends (N − 1)s numbers (Patarasuk and Yuan 2009, §3).
    """
    parts = in_parts(group, out, x)
    group.announce("all_gather by a ring", x)
    parts[group.rank].copy_(x.view(-1))
    ring_all_gather(group, parts)


def all_to_all(group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
    """x[N·s] → out[N·s]: part j of rank i becomes part i of rank j.

    N − 1 steps: in step k, s elements to rank r + k, and s from rank r − k (Thakur et al.
    2005, §4: pairwise exchange).
    """
    part = x.view(-1)[: x.numel() // group.size]
    give, get = in_parts(group, x, part), in_parts(group, out, part)
    group.announce("all_to_all", x)
    get[group.rank].copy_(give[group.rank])
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(give[to], to, get[source], source)


def linear_broadcast_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] to each other rank, from the root; here and below the root is rank 0."""
    return Sent(n * (ranks - 1), ranks - 1) if rank == 0 else Sent(0, 0)


def tree_broadcast_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] to each child."""
    messages = len(children(rank, ranks))
    return Sent(n * messages, messages)


def reduce_sent(n: int, rank: int, ranks: int) -> Sent:
    """By a line or a tree: each rank but the root passes on its x[n], once."""
    return Sent(n, 1) if rank else Sent(0, 0)


def scatter_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of x[n], a part x[n/N] to each other rank, from the root."""
    return Sent(n * (ranks - 1) // ranks, ranks - 1) if rank == 0 else Sent(0, 0)


def gather_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of out[n], one's own x[n/N] to the root."""
    return Sent(n // ranks, 1) if rank else Sent(0, 0)


def reduce_scatter_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of x[n], all parts x[n/N] but one, in messages of PIECE."""
    return Sent(n * (ranks - 1) // ranks, max(1, -(-n // ranks // PIECE)) * (ranks - 1))


def all_gather_sent(n: int, rank: int, ranks: int) -> Sent:
    """Of out[n] (or, all to all, of x[n]), all parts of n/N but one."""
    return Sent(n * (ranks - 1) // ranks, ranks - 1)


def by_messages(algorithm: Callable[..., None]) -> Work:
    return lambda group, x, out: algorithm(group, x, torch.add)


# Not algorithms on messages but other groups, whose own methods do it.
GROUPS: dict[str, Callable[[Group], Group]]
GROUPS = {"shared": SharedGroup, "hierarchical": HierarchicalGroup}
SHARING = ("backend", "shared")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OPS: dict[str, dict[str, Work]] = {
    "all_reduce": {
        **{name: by_messages(algorithm) for name, algorithm in ALGORITHMS.items()},
        **dict.fromkeys(("backend", *GROUPS), lambda group, x, out: group.all_reduce(x)),
    },
    "broadcast": {
        "linear": lambda group, x, out: linear_broadcast(group, x),
        "tree": lambda group, x, out: tree_broadcast(group, x),
        **dict.fromkeys(SHARING, lambda group, x, out: group.broadcast(x)),
    },
    "reduce": {"linear": by_messages(linear_reduce), "tree": by_messages(tree_reduce)},
    "scatter": {"linear": scatter},
    "gather": {"linear": gather},
    "reduce_scatter": {
        "ring": lambda group, x, out: reduce_scatter(group, x, out, torch.add),
        **dict.fromkeys(SHARING, lambda group, x, out: group.reduce_scatter(x, out)),
    },
    "all_gather": {
        "ring": all_gather,
        **dict.fromkeys(SHARING, lambda group, x, out: group.all_gather(x, out)),
    },
    "all_to_all": {"pairwise": all_to_all},
}
SENT: dict[tuple[str, str], Callable[[int, int, int], Sent]] = {
    ("broadcast", "linear"): linear_broadcast_sent,
    ("broadcast", "tree"): tree_broadcast_sent,
    ("reduce", "linear"): reduce_sent,
    ("reduce", "tree"): reduce_sent,
    ("scatter", "linear"): scatter_sent,
    ("gather", "linear"): gather_sent,
    ("reduce_scatter", "ring"): reduce_scatter_sent,
    ("all_gather", "ring"): all_gather_sent,
    ("all_to_all", "pairwise"): all_gather_sent,
}


def main(
    op: str = "all_reduce",
    size: str = "1MB",
    ranks: int = 4,
    algorithm: str = "ring,backend",
    dtype: str = "float32",
    times: int = 11,
    device: str = "auto",
) -> None:
    """Time collectives of several sizes and algorithms (lists with commas), as NCCL's tests do."""
    from distributed.workbench.measure import HEADER, row, time_one

    sizes, names = [to_bytes(one) for one in size.split(",")], algorithm.split(",")
    if op not in OPS:
        raise ValueError(f"op={op!r}: choose one of {', '.join(OPS)}")
    for name in set(names) - set(OPS[op]):
        raise ValueError(f"algorithm={name!r}: for {op}, choose from {', '.join(OPS[op])}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    kind = getattr(torch, dtype)
    if times < 1:
        raise ValueError(f"times={times}: measure once or more")

    def measure(group: Group) -> list[str]:
        rows, groups = [], {name: GROUPS[name](group) for name in names if name in GROUPS}
        for wanted in sizes:
            n = max(1, wanted // kind.itemsize // group.size) * group.size
            for name in names:
                taken, right = time_one(groups.get(name, group), OPS[op][name], op, n, kind, times)
                rows.append(row(op, name, n * kind.itemsize, group.size, taken, right))
        return rows

    rows = launch(measure, ranks=ranks, device=device, timeout=None)[0]
    print("\n".join([HEADER, *rows]))
    assert not any("WRONG" in line for line in rows), "some numbers are wrong"


if __name__ == "__main__":
    run_script(main)
