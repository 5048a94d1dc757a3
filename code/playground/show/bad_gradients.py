"""Which ranks have a gradient that isn't finite: one table per moment, a cell per parameter."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from playground.show.colours import PALE

BAD = "#D55E00"


def bad_gradients(moments: Mapping[str, Sequence[Sequence[bool]]], names: Sequence[str]) -> Figure:
    """Draw for each moment (the panel's title) bad[rank][parameter]; `names` are parameters'."""
    figure, axes = plt.subplots(len(moments), figsize=(3.3, 1.15 * len(moments)), sharex=True)
    for axis, (title, ranks) in zip(axes, moments.items(), strict=True):
        for rank, row in enumerate(ranks):
            for place, bad in enumerate(row):
                color = BAD if bad else PALE
                axis.add_patch(Rectangle((place, rank), 1, 1, facecolor=color, edgecolor="white"))
                if bad:
                    middle = place + 0.5, rank + 0.5
                    axis.text(*middle, "NaN", ha="center", va="center", color="black")
        axis.set(xlim=(0, len(names)), ylim=(len(ranks), 0))
        axis.set_yticks([rank + 0.5 for rank in range(len(ranks))])
        axis.set_yticklabels([f"rank {rank}" for rank in range(len(ranks))])
        axis.set_xticks([place + 0.5 for place in range(len(names))], names)
        axis.tick_params(length=0)
        axis.set_title(title, loc="left")
        for side in axis.spines.values():
            side.set_visible(False)
    return figure
