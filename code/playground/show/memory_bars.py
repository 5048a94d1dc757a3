"""Bars of a rank's memory by purpose, in the same colors on every page."""

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from playground.show.colours import GREY

PURPOSES = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "master copy": "#56B4E9",
    "optimizer states": "#009E73",
    "buckets": "#F0E442",
    "gathered": "#CC79A7",
    "activations": "#c9cdd3",
    "backward": GREY,
    "step": "#D55E00",
}
OTHER = GREY


def memory_bars(
    bars: Mapping[str, Mapping[str, float]],
    unit: float = 1e9,
    label: str = "GB on each rank",
    title: str = "",
    groups: int = 1,
    axis: Axes | None = None,
) -> Axes:
    """Draw a stacked bar per name in `bars`: purpose → bytes, in clusters of `groups` bars."""
    if axis is None:
        _, axis = plt.subplots(figsize=(7.2, 3.4))
    places = [i + i // groups * 0.5 * (groups > 1) for i in range(len(bars))]
    bottoms = [0.0] * len(bars)
    for purpose in _purposes(bars.values()):
        sizes = [bar.get(purpose, 0.0) / unit for bar in bars.values()]
        colour = PURPOSES.get(purpose, OTHER)
        axis.bar(places, sizes, 0.8, bottom=bottoms, label=purpose, color=colour)
        bottoms = [bottom + size for bottom, size in zip(bottoms, sizes, strict=True)]
    for place, top in zip(places, bottoms, strict=True):
        axis.text(place, top, f"{top:.4g}", ha="center", va="bottom", fontsize=9)
    axis.set_xticks(places, list(bars))
    axis.set(ylabel=label, title=title)
    axis.set_ylim(0, 1.12 * max(bottoms, default=1))
    if groups > 1:  # the lower bars are on the right, so the legend fits there
        axis.legend(loc="upper right")
    else:
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return axis


def _purposes(bars: Iterable[Mapping[str, float]]) -> list[str]:
    """All purposes that occur, with those in `PURPOSES` first."""
    found = {purpose for bar in bars for purpose, size in bar.items() if size}
    return [*(p for p in PURPOSES if p in found), *sorted(found - set(PURPOSES))]
