"""Which process sits where: what torchrun starts on each host, and what it tells each process."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from playground.show.colours import GREY, PALE, RANKS


def started_by_torchrun(hosts: int = 2, gpus: int = 4) -> Figure:
    """Hosts side by side: torchrun on top, below it a process for each GPU with its numbers."""
    figure, axis = plt.subplots(figsize=(7.2, 3.0))
    for host in range(hosts):
        left = host * (gpus + 0.6)
        axis.add_patch(_box(left - 0.1, -0.62, gpus + 0.15, 3.32, "none"))
        axis.text(left, 2.42, f"host {host}", weight="bold", va="center")
        axis.add_patch(_box(left, 1.65, gpus - 0.05, 0.45, PALE))
        axis.text(left + gpus / 2, 1.87, "torchrun", ha="center", va="center")
        for local in range(gpus):
            middle, rank = left + local + 0.475, host * gpus + local
            axis.annotate("", (middle, 1.3), (middle, 1.63), arrowprops={"arrowstyle": "->"})
            axis.add_patch(_box(left + local, 0.45, 0.95, 0.85, RANKS[local % len(RANKS)]))
            axis.text(middle, 1.06, f"RANK {rank}", ha="center", va="center", color="black", size=9)
            axis.text(
                middle, 0.7, f"LOCAL_\nRANK {local}",
                ha="center", va="center", color="black", size=9, linespacing=1.3,
            )  # fmt: skip
            axis.annotate("", (middle, 0.1), (middle, 0.43), arrowprops={"arrowstyle": "->"})
            axis.add_patch(_box(left + local, -0.4, 0.95, 0.5, PALE))
            axis.text(middle, -0.16, f"GPU {local}", ha="center", va="center", size=9)
    axis.set(xlim=(-0.3, hosts * (gpus + 0.6) - 0.3), ylim=(-0.75, 2.8))
    axis.axis("off")
    return figure


def _box(left: float, bottom: float, width: float, height: float, colour: str) -> FancyBboxPatch:
    style = "round,pad=0,rounding_size=0.08"
    return FancyBboxPatch((left, bottom), width, height, boxstyle=style, fc=colour, ec=GREY, lw=0.8)
