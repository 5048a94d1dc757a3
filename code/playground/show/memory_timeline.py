"""Memory of a step over its operations, as stacked areas: one panel per loss."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.memory_peak import Held
from playground.show.colours import GREY
from playground.show.memory_bars import PURPOSES

PURPOSE_COLOURS = {
    **{name: PURPOSES[name] for name in ("parameters", "optimizer states", "activations")},
    "gradients": PURPOSES["gradients"],
    "logits": "#D55E00",
    "temporary": GREY,
}
POINTS = 40  # of each part of a step, because a page has to carry them
PARTS = {  # the moment that an operation leads to → the part of the step, as on the axis
    "after the layers": "forward",
    "in the loss": "loss",
    "in the loss's backward pass": "loss",
    "after the backward pass": "backward",
    "optimizer": "step",
}


def memory_timeline(histories: Mapping[str, Sequence[tuple[str, Held]]]) -> Figure:
    """Draw what `distributed.memory_peak.measured_step` has seen, by the panels' titles."""
    figure, axes = plt.subplots(len(histories), figsize=(3.3, 2.1 * len(histories)), sharey=True)
    for axis, (title, history) in zip(axes, histories.items(), strict=True):
        history = thinned([(PARTS.get(moment, "forward"), held) for moment, held in history])
        parts = [part for part, _ in history]
        x = _evenly(parts)
        megabytes = [
            [held.get(purpose, 0.0) / 1e6 for _, held in history] for purpose in PURPOSE_COLOURS
        ]
        axis.stackplot(x, megabytes, colors=PURPOSE_COLOURS.values(), labels=PURPOSE_COLOURS)
        totals = [sum(held.values()) / 1e6 for _, held in history]
        top = max(range(len(totals)), key=totals.__getitem__)
        axis.annotate(
            f"{totals[top]:.1f} MB", (x[top], totals[top]), (0, 3),
            textcoords="offset points", ha="center",
        )  # fmt: skip
        names = [name for name, _ in groupby(parts)]
        axis.set_xticks([place + 0.5 for place in range(len(names))], names)
        axis.tick_params(axis="x", length=0)
        for border in range(1, len(names)):
            axis.axvline(border, color="white", linewidth=0.8)
        axis.set_title(title, loc="left")
        axis.set(ylabel="MB", xlim=(0, len(names)), ylim=(0, 120))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, loc="outside lower center", frameon=False)
    return figure


def thinned(history: Sequence[tuple[str, Held]]) -> list[tuple[str, Held]]:
    """At most `POINTS` of each part, each the one with the most memory among its neighbors."""
    found = []
    for _, group in groupby(history, key=lambda entry: entry[0]):
        entries = list(group)
        for i in range(count := min(POINTS, len(entries))):
            neighbors = entries[i * len(entries) // count : (i + 1) * len(entries) // count]
            found.append(max(neighbors, key=lambda entry: sum(entry[1].values())))
    return found


def _evenly(parts: Sequence[str]) -> list[float]:
    """Places on the axis: each part of the step is 1 wide, however many operations it has."""
    places: list[float] = []
    for number, (_, group) in enumerate(groupby(parts)):
        count = len(list(group))
        places += [number + (i + 1) / count for i in range(count)]
    return places
