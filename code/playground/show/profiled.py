"""What `torch.profiler` saw of a step, as spans of the book's own trace."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from distributed.runtime.trace import Span, Trace
from playground.show.colours import KINDS

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


def counted(trace: Trace) -> dict[str, int]:
    """How many collectives of each kind a trace of the book's own has noted."""
    names = {"all_reduce": "all-reduce", "all_gather": "all-gather"}
    names["reduce_scatter"] = "reduce-scatter"
    found = dict.fromkeys(names.values(), 0)
    for span in trace.spans:
        if span.kind == "communication":
            found[names[span.name.split()[0]]] += 1
    return found


def beside(found: dict[str, Sequence[Trace]]) -> Figure:
    """One timeline for each title, in a row: a lane for computation, one for communication."""
    figure, axes = plt.subplots(1, len(found), figsize=(8.4, 2.2), sharey=True)
    for axis, (title, traces) in zip(axes, found.items(), strict=True):
        start = min(span.start for trace in traces for span in trace.spans)
        for trace in traces:
            for span in trace.spans:
                lane = trace.rank + (0.0 if span.kind == "compute" else 0.42)
                left, width = 1e3 * (span.start - start), 1e3 * span.seconds
                colour = KINDS[span.kind]
                axis.barh(lane, width, 0.4, left, color=colour, edgecolor="white", linewidth=0.4)
        axis.set(title=title, xlabel="time (ms)")
    axes[0].set_yticks([0.2, 1.2], ["rank 0", "rank 1"])
    axes[0].invert_yaxis()
    marks = [Patch(color=colour) for colour in KINDS.values()]
    figure.legend(marks, KINDS, ncols=len(KINDS), loc="lower center", bbox_to_anchor=(0.5, 0.98))
    return figure
