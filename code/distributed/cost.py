"""Cost model of a step: time of computation, time of messages, and how much they overlap.

    message: α + β · bytes;  reduce-scatter of n bytes in a ring: (N − 1)(α + β n/N)
    bucket i leaves when it is full and the one before has left: begin_i = max(ready_i, end_{i−1})

The model follows the events of one rank, one after the other, because all ranks are alike. So the
time of a prediction grows with the number of buckets, not with the number of ranks.
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
        """A link from α (s) and β (s/byte); β may be 0 after a fit."""
        return cls(float(alpha), 1 / float(beta) if beta else math.inf)


class Cluster(NamedTuple):
    """Hosts of `per_host` ranks; links inside a host and between hosts; each rank's speed.

    `speed` is in FLOP/s as measured in training, not the data sheet's. Compute times vary by
    `jitter`, their standard deviation as a share of their mean. `oversubscription` is the number of
    hosts whose traffic shares one link between switches. It is 1 for a ring in the order of the
    switches, because its messages don't share such a link.
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
        """Each host's share of the link between hosts when all send at the same time."""
        return Link(self.between.latency, self.between.bandwidth / self.oversubscription)


def reduce_scatter_time(cluster: Cluster, size: float) -> float:
    """Time of a reduce-scatter, or of an all-gather, of `size` bytes over all ranks (s)."""
    return _once_around(cluster, size) + _ring_latency(cluster)


def all_reduce(cluster: Cluster, size: float) -> float:
    """Time of an all-reduce of `size` bytes over all ranks (s): twice around the same rings.

    On many hosts, a tree sends the same bytes in fewer steps (Sanders et al. 2009).
    """
    local, hosts = _shape(cluster)
    levels = math.ceil(math.log2(hosts))
    tree = (local - 1) * cluster.inside.latency + levels * cluster.network.latency
    return 2 * (_once_around(cluster, size) + min(_ring_latency(cluster), tree))


def _shape(cluster: Cluster) -> tuple[int, int]:
    """Ranks on a host, and hosts."""
    local = min(cluster.ranks, cluster.per_host)
    return local, math.ceil(cluster.ranks / local)


def _once_around(cluster: Cluster, size: float) -> float:
    """Seconds for an array to go once around, over one GPU's link or all ports of a host."""
    link = cluster.network if _shape(cluster)[1] > 1 else cluster.inside
    return size * (cluster.ranks - 1) / cluster.ranks / link.bandwidth


def _ring_latency(cluster: Cluster) -> float:
    """Latencies of the N − 1 steps of a ring, in which every host's ranks are neighbors (s).

    A reduce-scatter has no tree, unless a host has one GPU or switches add (NCCL's `tuning.cc`).
    """
    local, hosts = _shape(cluster)
    return hosts * (local - 1) * cluster.inside.latency + (hosts - 1) * cluster.network.latency


def expected_maximum(n: int) -> float:
    """Expected maximum of n normal numbers, in standard deviations above the mean (Blom 1958)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0


def largest_exponential(n: int, s: float) -> float:
    """1 − s plus a wait with mean s; the largest of n waits is s(1 + 1/2 + … + 1/n) on average."""
    harmonic = sum(1 / i for i in range(1, n + 1)) if n < 100 else math.log(n) + 0.5772 + 0.5 / n
    return 1 - s + s * harmonic


def largest_lognormal(n: int, s: float) -> float:
    """A product of many small factors: its logarithm is normal."""
    sigma = math.sqrt(math.log(1 + s * s))
    return math.exp(sigma * expected_maximum(n) - sigma**2 / 2) if n > 1 else 1.0


# The expected largest of n times with mean 1 and standard deviation s, by distribution.
SCATTER: dict[str, Callable[[int, float], float]] = {
    "normal": lambda n, s: 1 + s * expected_maximum(n),
    "exponential": largest_exponential,
    "lognormal": largest_lognormal,
}


def slowest(cluster: Cluster, seconds: float) -> float:
    """Compute time of the slowest rank when the mean over ranks is `seconds` (s).

    Raises ValueError for an unknown scatter.
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
    """A step whose batch takes `loading` seconds; if loaded `ahead`, the step hides them."""
    return step._replace(total=max(step.total, loading) if ahead else step.total + loading)


def step_ddp(cluster: Cluster, flops: float, sizes: Sequence[float]) -> Step:
    """A DDP step with `flops` FLOP per rank, and gradients in buckets of these sizes (bytes).

    A third of the FLOP is the forward pass. Buckets fill evenly over the backward pass.
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
    """Predict a step of DDP on a large number of ranks, with fewer and fewer tokens on each."""
    if ranks < 1 or buckets < 1:
        raise ValueError(f"ranks={ranks}, buckets={buckets}: 1 or more of each")
    cluster = Cluster(ranks, 8, Link(5e-6, 400e9), Link(10e-6, 360e9), 400e12, jitter=0.02)
    for tokens in (4096, 1024, 256):  # of a model with 7 billion parameters, gradients in bf16
        step = step_ddp(cluster, 6 * 7e9 * tokens, [2 * 7e9 / buckets] * buckets)
        waits = step.exposed / step.total
        print(f"{tokens:,} tokens on each rank: {step.total:.2f} s, {waits:.0%} of it waiting")
        assert step.total >= step.compute > 0


if __name__ == "__main__":
    run_script(main)
