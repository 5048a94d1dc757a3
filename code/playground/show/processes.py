"""Processes of a job: which of them torchrun starts on each host, and with which environment."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from playground.show.colours import GREY, PALE, RANKS


def started_by_torchrun(hosts: int = 2, gpus: int = 4) -> Figure:
    """Hosts one above the other, as wide as a phone: torchrun, and a process for each GPU."""
    figure, axis = plt.subplots(figsize=(3.6, 2.4 * hosts))
    for host in range(hosts):
        axis.add_patch(_box(-0.1, _below(host, -0.52), gpus + 0.15, 3.22, "none"))
        axis.text(0, _below(host, 2.42), f"host {host}", weight="bold", va="center")
        axis.add_patch(_box(0, _below(host, 1.65), gpus - 0.05, 0.45, PALE))
        axis.text(gpus / 2, _below(host, 1.87), "torchrun", ha="center", va="center")
        for local in range(gpus):
            middle, rank = local + 0.475, host * gpus + local
            _arrow(axis, middle, _below(host, 1.63), _below(host, 1.4))
            axis.add_patch(_box(local, _below(host, 0.35), 0.95, 1.05, RANKS[local % len(RANKS)]))
            _words(axis, middle, _below(host, 1.16), f"RANK {rank}", "black")
            _words(axis, middle, _below(host, 0.7), f"LOCAL_\nRANK {local}", "black")
            _arrow(axis, middle, _below(host, 0.33), _below(host, 0.1))
            axis.add_patch(_box(local, _below(host, -0.4), 0.95, 0.5, PALE))
            _words(axis, middle, _below(host, -0.16), f"GPU {local}")
    axis.set(xlim=(-0.15, gpus + 0.1), ylim=(_below(hosts - 1, -0.6), 2.8))
    axis.axis("off")
    return figure


def _below(host: int, y: float) -> float:
    return y - 3.45 * host


def _words(axis: Axes, x: float, y: float, words: str, color: str | None = None) -> None:
    axis.text(x, y, words, ha="center", va="center", color=color, size=9, linespacing=1.3)


def _arrow(axis: Axes, x: float, start: float, end: float) -> None:
    axis.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "->"})


def _box(left: float, bottom: float, width: float, height: float, colour: str) -> FancyBboxPatch:
    style = "round,pad=0,rounding_size=0.08"
    return FancyBboxPatch((left, bottom), width, height, boxstyle=style, fc=colour, ec=GREY, lw=0.8)
