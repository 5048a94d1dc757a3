"""What `torch.profiler` saw of a step, as spans of the book's own trace."""

from typing import Any

from distributed.runtime.trace import Span, Trace, overlap

COMPUTE = ("aten::addmm", "aten::mm", "aten::relu", "aten::threshold_backward", "Optimizer.step")


def as_trace(profiler: Any, rank: int) -> Trace:
    """The large operations as computation, the backend's own events as communication.

    Events are on the profiler's clock (µs, from its start on), so lay only ranks of one machine
    beside each other, and never to the millisecond.
    """
    trace = Trace(rank)
    for event in profiler.events():
        backend = event.name.startswith(("gloo:", "nccl:"))
        if backend or event.name.startswith(COMPUTE):
            start, end = event.time_range.start / 1e6, event.time_range.end / 1e6
            kind = "communication" if backend else "compute"
            trace.spans.append(Span(event.name, kind, start, end))
    return trace


def collectives(profiler: Any) -> dict[str, int]:
    """How many collectives of each kind PyTorch was asked for."""
    names = {
        "c10d::allreduce_": "all-reduce",
        "c10d::_allgather_base_": "all-gather",
        "c10d::_reduce_scatter_base_": "reduce-scatter",
    }
    found = dict.fromkeys(names.values(), 0)
    for event in profiler.events():
        if event.name in names:
            found[names[event.name]] += 1
    return found


def shares(trace: Trace) -> tuple[float, float, float]:
    """Of the time from the first event to the last: computing, exposed communication, gaps."""
    whole = max(s.end for s in trace.spans) - min(s.start for s in trace.spans)
    computing = trace.seconds("compute")
    exposed = trace.seconds("communication") - overlap(trace)
    return computing / whole, exposed / whole, 1 - (computing + exposed) / whole
