"""Simulated time of a step: streams that compute, gather and reduce, and the wires they share.

Work is queued in the program's order. A stream runs one operation after the other. A collective
also holds a wire; it starts when its stream and its wire are free and its inputs are ready.

    gather, reduce-scatter of n bytes over N ranks   latencies + n (N − 1)/N / W
    W: inside a host one GPU's link; between hosts all the ports of a host together, because its
       GPUs pass the parts on to each other over faster links
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from distributed.cost import Cluster


class Span(NamedTuple):
    """One operation of a stream, with its start and end (s)."""

    stream: str
    name: str
    start: float
    end: float


class Streams:
    """Streams and wires, each with the time (s) at which it is free."""

    def __init__(self) -> None:
        self.free: dict[str, float] = {}
        self.spans: list[Span] = []

    def run(self, stream: str, name: str, seconds: float, *after: float, wire: str = "") -> float:
        """Queue work behind everything on `stream` and `wire`; return when it ends (s)."""
        busy = [stream, wire] if wire else [stream]
        start = max(0.0, *after, *(self.free.get(each, 0.0) for each in busy))
        end = start + seconds
        for each in busy:
            self.free[each] = end
        if seconds:
            self.spans.append(Span(stream, name, start, end))
        return end

    def compute(self, name: str, seconds: float, *after: float) -> float:
        return self.run("compute", name, seconds, *after)

    @property
    def end(self) -> float:
        return max(self.free.values(), default=0.0)


class Work(NamedTuple):
    """The work of each rank in a step, unit by unit in the order of the forward pass.

    Each unit has its bytes of parameters and of gradients, and its share of the computation.
    """

    cluster: Cluster
    parameters: Sequence[float]
    gradients: Sequence[float]
    shares: Sequence[float]
    forward: float  # seconds per micro-batch
    backward: float  # seconds per micro-batch, with recomputation
    micro_batches: int = 1

    @property
    def compute(self) -> float:
        return self.micro_batches * (self.forward + self.backward)

    @property
    def units(self) -> range:
        return range(len(self.shares))


class SimulatedStep(NamedTuple):
    """Length of a whole step (s), the part that computes, and the spans of every stream."""

    total: float
    compute: float
    spans: list[Span]

    @property
    def exposed(self) -> float:
        """Seconds in which the GPU computes nothing."""
        return max(0.0, self.total - self.compute)

    @property
    def efficiency(self) -> float:
        return self.compute / self.total if self.total else 1.0


def wire(cluster: Cluster) -> str:
    return "network" if cluster.ranks > cluster.per_host else "inside"


Schedule = Callable[[Work, Streams], None]


def simulate(schedule: Schedule, work: Work) -> SimulatedStep:
    """Simulate a step under a schedule. From the third micro-batch on, all are alike."""
    few = work._replace(micro_batches=min(work.micro_batches, 3))
    streams = Streams()
    schedule(few, streams)
    total = streams.end
    if further := work.micro_batches - few.micro_batches:
        two = Streams()
        schedule(work._replace(micro_batches=2), two)
        total += further * (total - two.end)
    return SimulatedStep(total, work.compute, streams.spans)
