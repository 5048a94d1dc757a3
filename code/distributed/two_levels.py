"""All-reduce in two levels: add up inside each host first, then between hosts.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Links inside a host are fast, and links between hosts are slow. So each element should leave a host
as rarely as possible, and every port should be busy at the same time. With N ranks on H hosts:

    reduce-scatter, inside   x[n]{partial over ranks} → part[nH/N]{partial over hosts}
    all-reduce, between      part[nH/N]{partial over hosts} → part[nH/N]
    all-gather, inside       part[nH/N] of each rank of the host → x[n]

Messages have x's dtype, and sums are made in it. A number goes through N/H − 1 roundings inside a
host and H − 1 between hosts. The three steps are those of Cho et al. 2019.
"""

from distributed import Group, launch
from distributed.all_reduce import (
    Array,
    Combine,
    Sent,
    Wire,
    bounds,
    cut_up,
    ring,
    ring_all_gather,
    ring_reduce_scatter,
    ring_sent,
)
from distributed.runtime.mesh import mesh
from distributed.runtime.script import run_script


def two_levels(inside: Wire, between: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n], in place. `split_by_host` gives both wires."""
    parts = cut_up(x, inside.size)
    mine = parts[inside.rank]  # the part for which this rank is responsible
    ring_reduce_scatter(inside, parts, combine)  # mine is now the sum of this host
    ring(between, mine, combine)  # and now the sum of all hosts
    ring_all_gather(inside, parts)


def split_by_host(group: Group, per_host: int) -> tuple[Group, Group]:
    """The ranks of this rank's host, and those with the same local rank on every host.

    The ranks of a host must have consecutive numbers, as torchrun assigns them. Every rank must
    call this. Raises ValueError as `check_hosts` does.
    """
    check_hosts(group.size, per_host)
    return mesh(group, per_host)


def check_hosts(ranks: int, per_host: int) -> None:
    """Raise ValueError unless `ranks` fill hosts of `per_host` ranks each."""
    if per_host < 1 or ranks % per_host:
        raise ValueError(f"per_host={per_host}: choose a divisor of the number of ranks, {ranks}")


def two_levels_sent(n: int, rank: int, ranks: int, per_host: int) -> tuple[Sent, Sent]:
    """Messages of a rank for x[n]: (inside its host, to other hosts).

    Inside, as much as for an all-reduce of x over the host alone. Between hosts, as much as for an
    all-reduce of its part. A host's ranks together send 2n(H − 1)/H elements to other hosts, if H
    divides their parts. Raises ValueError as `check_hosts` does.
    """
    check_hosts(ranks, per_host)
    host, local_rank = divmod(rank, per_host)
    start, end = bounds(n, per_host)[local_rank : local_rank + 2]
    return ring_sent(n, local_rank, per_host), ring_sent(end - start, host, ranks // per_host)


def main(ranks: int = 4, per_host: int = 2, n: int = 1000) -> None:
    """Treat one machine as several hosts, and count what each rank sends on each level."""
    import torch

    from distributed.runtime.trace import Trace

    def count(group: Group) -> tuple[Sent, Sent]:
        inside, between = split_by_host(group, per_host)
        inside.trace, between.trace = within, out = Trace(group.rank), Trace(group.rank)
        x = torch.full((n,), float(group.rank))
        two_levels(inside, between, x, torch.add)
        assert (x == sum(range(group.size))).all()
        return Sent(within.sent // 4, within.messages), Sent(out.sent // 4, out.messages)

    check_hosts(ranks, per_host)
    for rank, counted in enumerate(counts := launch(count, ranks=ranks)):
        within, out = (sent.elements for sent in counted)
        print(f"rank {rank} sent {within:,} elements inside its host, {out:,} to other hosts")
        assert counted == two_levels_sent(n, rank, len(counts), per_host)


if __name__ == "__main__":
    run_script(main)
