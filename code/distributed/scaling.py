"""How a step changes with more ranks: efficiency, speedup, and where all messages still hide.

    weak scaling    each rank keeps its rows:   efficiency = T(1) / T(N)
    strong scaling  all ranks share the rows:   speedup = T(1) / T(N)
    k equal buckets, each a message of m:       T = F + max(B/k + k·m, B + m)

F and B are the times of the forward and the backward pass. The maximum has two ends because one of
the two never rests: the link once the first bucket is full, or else the computation, and then
only the last bucket is waited for. It is `cost.step_ddp` in closed form.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from distributed.cost import Cluster, Link, Step, all_reduce, slowest
from distributed.runtime.script import run_script

BUCKET = 25e6  # bytes, as in DDP


def buckets(size: float, bucket: float = BUCKET) -> int:
    """How many buckets hold `size` bytes of gradients. Raises ValueError for sizes below 0."""
    if not size >= 0 or not bucket > 0:
        raise ValueError(f"size={size:g}, bucket={bucket:g}: give bytes, 0 or more, and above 0")
    return max(1, math.ceil(size / bucket))


def equal_messages(compute: float, k: int, message: float) -> float:
    """Seconds of a step that computes for `compute` seconds and sends k messages of `message`."""
    forward, backward = compute / 3, compute * 2 / 3
    return forward + max(backward / k + k * message, backward + message)


def step(cluster: Cluster, flops: float, size: float, bucket: float = BUCKET) -> Step:
    """A step of DDP: each rank does `flops` operations and has `size` bytes of gradients."""
    compute, k = slowest(cluster, flops / cluster.speed), buckets(size, bucket)
    message = all_reduce(cluster, size / k) if cluster.ranks > 1 else 0.0
    return Step(equal_messages(compute, k, message), compute, k * message)


class Scaling(NamedTuple):
    """A rank count, how often faster than one rank the same work is done, and per rank."""

    ranks: int
    speedup: float

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ranks


def weak(
    cluster: Cluster, flops: float, size: float, ranks: Sequence[int], bucket: float = BUCKET
) -> list[Scaling]:
    """Each rank has work of `flops` operations, however many there are (Gustafson 1988)."""
    one = step(cluster._replace(ranks=1), flops, size, bucket).total
    steps = [step(cluster._replace(ranks=n), flops, size, bucket).total for n in ranks]
    return [Scaling(n, n * one / seconds) for n, seconds in zip(ranks, steps, strict=True)]


def strong(
    cluster: Cluster, flops: float, size: float, ranks: Sequence[int], bucket: float = BUCKET
) -> list[Scaling]:
    """All ranks share work of `flops` operations: a global batch that stays (Amdahl 1967)."""
    one = step(cluster._replace(ranks=1), flops, size, bucket).total
    steps = [step(cluster._replace(ranks=n), flops / n, size, bucket).total for n in ranks]
    return [Scaling(n, one / seconds) for n, seconds in zip(ranks, steps, strict=True)]


def flops_to_hide(cluster: Cluster, size: float, bucket: float = BUCKET) -> float:
    """Operations that each rank needs in a step, for all messages but the last to hide.

    Then the backward pass, two thirds of them, lasts as long as all messages. Divided by the
    operations for a row it is the smallest batch of a rank that scales well.
    """
    k = buckets(size, bucket)
    messages = k * all_reduce(cluster, size / k) if cluster.ranks > 1 else 0.0
    return 1.5 * messages * cluster.speed


def main(rows: int = 4, context: int = 2048) -> None:
    """Seven billion parameters on hosts with a port for each GPU, by rows of each and of all."""
    parameters, cluster = 7e9, Cluster(1, 8, Link(5e-6, 450e9), Link(1e-5, 400e9), 400e12)
    flops, counts = 6 * parameters * context * rows, [1, 8, 64, 512, 4096]
    print(f"{'ranks':>6}{'weak scaling':>16}{'strong scaling':>16}  tokens of a rank that hide all")
    grown = weak(cluster, flops, 2 * parameters, counts)
    shared = strong(cluster, 512 * flops, 2 * parameters, counts)
    for a, b in zip(grown, shared, strict=True):
        many = cluster._replace(ranks=a.ranks)
        tokens = flops_to_hide(many, 2 * parameters) / (6 * parameters)
        print(f"{a.ranks:6}{a.efficiency:16.1%}{b.efficiency:16.1%}  {tokens:,.0f}")
        assert b.efficiency <= 1 + 1e-9
        assert abs(a.efficiency - b.efficiency) < 1e-9 or a.ranks != 512  # the same work there


if __name__ == "__main__":
    run_script(main)
