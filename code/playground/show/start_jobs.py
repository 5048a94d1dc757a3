"""Drawing for *Starting jobs*: which program starts which."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from playground.show.colours import GREY, INK, PALE, RANKS


def programs(hosts: int = 2, ranks: int = 4) -> Figure:
    """The scheduler, a torchrun on each host, and the ranks that each of them starts."""
    figure, axis = plt.subplots(figsize=(3.2, 1.45))
    middle = (hosts * (ranks + 1) - 2) / 2
    axis.text(middle, 2.3, "Slurm, Kubernetes or you", ha="center", va="center", color=INK)
    for host in range(hosts):
        left = host * (ranks + 1)
        centre = left + (ranks - 1) / 2
        axis.add_patch(plt.Rectangle((left - 0.6, -0.55), ranks + 0.2, 2.1, color=PALE, lw=0))
        axis.text(centre, 1.15, f"torchrun on host {host}", ha="center", va="center", color=INK)
        axis.annotate(
            "", (centre, 1.6), (middle, 2.12), arrowprops={"arrowstyle": "->", "color": GREY}
        )
        for local in range(ranks):
            at = left + local
            axis.annotate("", (at, 0.36), (centre, 0.98),
                          arrowprops={"arrowstyle": "->", "color": GREY})  # fmt: skip
            axis.add_patch(plt.Circle((at, 0), 0.36, color=RANKS[0], lw=0))
            axis.text(at, 0, f"{host * ranks + local}", ha="center", va="center", color="white")
    axis.set(xlim=(-0.8, 2 * middle + 0.8), ylim=(-0.7, 2.6), aspect="equal")
    axis.axis("off")
    return figure
