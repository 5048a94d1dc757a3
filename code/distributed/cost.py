"""What a step costs in time: computation, messages, and how much of them happens at once.

    message: α + β · bytes;  reduce-scatter of n bytes in a ring: (N − 1)(α + β n/N)
    bucket i leaves when it is full and the one before has left: begin_i = max(ready_i, end_{i−1})

Events are followed one after the other, for one rank: where all ranks are alike, one stands for
all. So the cost of a prediction grows with the buckets, and not with the ranks.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

from distributed.runtime.script import run_script
from distributed.runtime.trace import overlapped


class Link(NamedTuple):
    """A message of n bytes takes latency + n / bandwidth (s; bytes/s)."""

    latency: float
    bandwidth: float

    @classmethod
    def fitted(cls, alpha: float, beta: float) -> "Link":
        """Of α (s) and β (s/byte); a fit may find that bytes cost nothing."""
        return cls(float(alpha), 1 / float(beta) if beta else math.inf)


class Cluster(NamedTuple):
    """Hosts of `per_host` ranks; links inside a host and between hosts; each rank's speed.

    `speed` is in operations per second as measured in training, not as promised. Times to compute
    scatter by `jitter`, their standard deviation as a share of their mean. `oversubscription` is
    how many hosts' traffic meets in one link between switches; a ring in the order of the switches
    does not meet there, so for it that is 1.
    """

    ranks: int
    per_host: int
    inside: Link
    between: Link
    speed: float
    jitter: float = 0.0
    scatter: str = "normal"  # or another of SCATTER
    oversubscription: float = 1.0

    @property
    def network(self) -> Link:
        """What is left of the link between hosts when all send at once."""
        return Link(self.between.latency, self.between.bandwidth / self.oversubscription)


def reduce_scatter_time(cluster: Cluster, size: float) -> float:
    """Time of a reduce-scatter, or of an all-gather, of `size` bytes over all ranks (s)."""
    return _in_rings(cluster, size, 1)


def all_reduce(cluster: Cluster, size: float) -> float:
    """Time of an all-reduce of `size` bytes over all ranks: twice round the same rings (s)."""
    return _in_rings(cluster, size, 2)


def _in_rings(cluster: Cluster, size: float, times: int) -> float:
    """Seconds in which an array goes `times` round all ranks, in as many rings as use every port.

    Its parts travel in a pipeline, so the slowest link decides: within a host one GPU's link,
    between hosts the ports of one host together. Latencies add up, of each message in a host, and
    between hosts of a ring or, if there are many, of a tree, which sends the same bytes (NCCL's
    `tuning.cc`; Sanders et al. 2009).
    """
    n = cluster.ranks
    if n == 1:
        return 0.0
    local = min(n, cluster.per_host)
    hosts = math.ceil(n / local)
    link = cluster.network if hosts > 1 else cluster.inside
    latency = times * (local - 1) * cluster.inside.latency
    if hosts > 1:
        latency += min(times * (hosts - 1), 2 * math.ceil(math.log2(hosts))) * link.latency
    return latency + times * size * (n - 1) / n / link.bandwidth


def expected_maximum(n: int) -> float:
    """Expected maximum of n normal numbers, in standard deviations above the mean (Blom 1958)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0


def largest_exponential(n: int, s: float) -> float:
    """1 − s, and then a wait with mean s: of n the largest waits s(1 + 1/2 + … + 1/n)."""
    harmonic = sum(1 / i for i in range(1, n + 1)) if n < 100 else math.log(n) + 0.5772 + 0.5 / n
    return 1 - s + s * harmonic


def largest_lognormal(n: int, s: float) -> float:
    """Many small factors multiply: the logarithm is normal."""
    sigma = math.sqrt(math.log(1 + s * s))
    return math.exp(sigma * expected_maximum(n) - sigma**2 / 2) if n > 1 else 1.0


# The expected largest of n times with mean 1 and standard deviation s, by how they scatter.
SCATTER: dict[str, Callable[[int, float], float]] = {
    "normal": lambda n, s: 1 + s * expected_maximum(n),
    "exponential": largest_exponential,
    "lognormal": largest_lognormal,
}


def slowest(cluster: Cluster, seconds: float) -> float:
    """How long the last of all ranks computes when the mean is `seconds` (s).

    Raises ValueError for a scatter that is not known.
    """
    if cluster.scatter not in SCATTER:
        raise ValueError(f"scatter={cluster.scatter!r}: choose one of {', '.join(SCATTER)}")
    return seconds * SCATTER[cluster.scatter](cluster.ranks, cluster.jitter)


class Step(NamedTuple):
    """Seconds of a step, of its computation, and of all its messages."""

    total: float
    compute: float
    communication: float

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return self.total - self.compute


def with_loading(step: Step, loading: float, ahead: bool = True) -> Step:
    """A step whose batch takes `loading` seconds to arrive: in its shadow if loaded `ahead`."""
    return step._replace(total=max(step.total, loading) if ahead else step.total + loading)


def step_ddp(cluster: Cluster, flops: float, sizes: Sequence[float]) -> Step:
    """DDP: `flops` operations of each rank in a step, gradients in buckets of these sizes (bytes).

    A third of the operations is the forward pass. Buckets fill evenly over the backward pass.
    """
    compute = slowest(cluster, flops / cluster.speed)
    forward, backward, whole = compute / 3, compute * 2 / 3, sum(sizes)
    messages = [all_reduce(cluster, size) if cluster.ranks > 1 else 0.0 for size in sizes]
    ready, filled = [], 0.0
    for size in sizes:
        filled += size
        ready.append(forward + backward * filled / whole)
    return Step(overlapped(ready, messages, compute), compute, sum(messages))


def main(ranks: int = 16384, buckets: int = 200) -> None:
    """A step of DDP on very many ranks: predicted at once."""
    if ranks < 1 or buckets < 1:
        raise ValueError(f"ranks={ranks}, buckets={buckets}: 1 or more of each")
    cluster = Cluster(ranks, 8, Link(5e-6, 400e9), Link(10e-6, 360e9), 400e12, jitter=0.02)
    for size in (2.5e6, 25e6, 100e6):
        step = step_ddp(cluster, 6 * 7e9 * 8192, [size] * buckets)
        waits = step.exposed / step.total
        print(
            f"{buckets} buckets of {size / 1e6:g} MB: {step.total:.2f} s, {waits:.0%} of it waiting"
        )
        assert step.total >= max(step.compute, 0)


if __name__ == "__main__":
    run_script(main)
