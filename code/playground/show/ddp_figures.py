"""Figures of the part *DDP*, in the marks of the whole book: a slot of a cell for each rank."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distributed.runtime.trace import Trace
from playground.show.colours import GREY, INK, KINDS, RANKS


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
        handles, ["compute", "communication"], ncols=2, loc="lower right", bbox_to_anchor=(1, 1)
    )
    return figure


def waiting_buckets() -> Figure:
    """Three buckets of one pass: the first was sent, and the second waits for a gradient."""
    figure, axis = plt.subplots(figsize=(7.2, 1.9))
    rows = {"bucket 0: sent": "111", "bucket 1: waits": "101", "bucket 2: full, waits": "111"}
    for row, (name, came) in enumerate(rows.items()):
        axis.text(-0.2, row + 0.45, name, ha="right", va="center")
        for place, one in enumerate(came):
            filled = one == "1"
            axis.add_patch(
                Rectangle(
                    (place * 1.3, row + 0.1), 1.3, 0.7, fc=RANKS[0] if filled else "none",
                    hatch="////" if filled and row else None, ec="#ffffff", lw=0.6,
                )
            )  # fmt: skip
        sent = row == 0
        frame = Rectangle((0, row + 0.1), 3.9, 0.7, fc="none", ec=INK if sent else GREY)
        frame.set_linewidth(2 if sent else 0.8)
        axis.add_patch(frame)
    axis.annotate(
        "never comes", (2.0, 1.45), (5.0, 1.45), va="center", color=KINDS["communication"],
        arrowprops={"arrowstyle": "->", "color": KINDS["communication"]},
    )  # fmt: skip
    axis.set(xlim=(-2.6, 7), ylim=(3, -0.1))
    axis.axis("off")
    return figure


def shares_of(ways: dict[str, list[list[int]]]) -> Figure:
    """For each way to share out examples, a lane for each rank with the examples that it reads."""
    figure, axes = plt.subplots(1, len(ways), figsize=(7.2, 1.9))
    for axis, (way, shares) in zip(axes, ways.items(), strict=True):
        seen: set[int] = set()
        for rank, share in enumerate(shares):
            for place, example in enumerate(share):
                again = example in seen
                seen.add(example)
                box = Rectangle((place, rank + 0.1), 0.92, 0.75, fc=RANKS[rank], ec="#ffffff")
                if again:
                    box.set(hatch="xxx")
                axis.add_patch(box)
                said = f"{example}"
                box_style = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
                axis.text(
                    place + 0.46, rank + 0.48, said, ha="center", va="center", fontsize=9,
                    color="black", bbox=box_style,
                )  # fmt: skip
            axis.text(-0.15, rank + 0.48, f"rank {rank}", ha="right", va="center", fontsize=8)
        axis.set(title=way, xlim=(-1.2, 3.1), ylim=(len(shares), 0))
        axis.axis("off")
    return figure
