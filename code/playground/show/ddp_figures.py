"""Figures of the part *DDP*, in the book's notation: a cell has a slot for each rank."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distributed.runtime.trace import Trace
from playground.show.colours import KINDS


def lanes(traces: dict[str, Trace], title: str = "") -> Figure:
    """Under each name what one rank did: a lane of computation, and below it one of messages."""
    figure, axis = plt.subplots(figsize=(7.2, 0.9 + 0.75 * len(traces)))
    places, names = [], []
    for number, (name, trace) in enumerate(traces.items()):
        start = min(span.start for span in trace.spans)
        for kind, lower in (("compute", 0.0), ("communication", 0.42)):
            for span in trace.spans:
                if span.kind == kind:
                    axis.barh(
                        number * 1.15 + lower, span.seconds * 1e3, left=(span.start - start) * 1e3,
                        height=0.4, color=KINDS[kind], edgecolor="white", linewidth=0.5,
                    )  # fmt: skip
        places.append(number * 1.15 + 0.2)
        names.append(name)
    axis.set(xlabel="time (ms)", title=title)
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    handles = [Rectangle((0, 0), 1, 1, color=KINDS[k]) for k in ("compute", "communication")]
    axis.legend(
        handles,
        ["compute", "communication"],
        ncols=2,
        handlelength=1.2,
        columnspacing=1,
        loc="lower right" if title else "lower left",
        bbox_to_anchor=(1 if title else 0, 1),
    )
    return figure
