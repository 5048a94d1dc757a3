"""Published bus bandwidth over size on eight GPUs, and the model α + bytes/W next to it.

The rows are in `distributed/planner/bus_bandwidth.csv`, each with its source. Bus bandwidth is what
each GPU would send around a ring, divided by the time, as `nccl-tests` define it.
"""

import csv
from importlib.resources import files
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from playground.show.colours import GREY, INK, RANKS
from playground.show.links import ACHIEVED, NVLINK_LATENCY, Line

CROSSINGS = {"all-reduce": 2, "reduce-scatter": 1}  # times (N − 1)/N of the array
TICKS = {1e5: "100 kB", 1e6: "1 MB", 1e7: "10 MB", 1e8: "100 MB", 1e9: "1 GB", 1e10: "10 GB"}
LINE_RATE = 450e9  # bytes/s of NVLink 4 in one direction: H100 and H200


class Measured(NamedTuple):
    """A collective on an array of `size` bytes, and its bus bandwidth (bytes/s)."""

    collective: str
    algorithm: str
    gpus: int
    size: float
    bandwidth: float
    source: str

    @property
    def sent(self) -> float:
        """Bytes that each GPU would send around a ring."""
        return CROSSINGS[self.collective] * (self.gpus - 1) / self.gpus * self.size

    @property
    def seconds(self) -> float:
        return self.sent / self.bandwidth


def published(collective: str) -> list[Measured]:
    """The published rows of a collective, from small arrays to large ones."""
    path = files("distributed.planner").joinpath("bus_bandwidth.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    found = [
        Measured(
            row["collective"],
            row["algorithm"],
            int(row["gpus"]),
            float(row["bytes"]),
            float(row["value"]) * 1e9,
            f"{row['source']} ({row['section']})",
        )
        for row in rows
        if row["collective"] == collective
    ]
    return sorted(found, key=lambda one: one.size)


def model() -> Line:
    """An all-reduce around a ring of eight: α has all its 14 steps, and W is 80% of line rate."""
    return Line("model", 14 * NVLINK_LATENCY, ACHIEVED * LINE_RATE)


def bus_bandwidth_figure() -> Figure:
    """Bus bandwidth over the bytes that each GPU sends: dots as published, a line for the model."""
    line = model()
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    sent = np.logspace(4.5, 10.6, 200)
    axis.axhline(LINE_RATE / 1e9, color=GREY, linestyle="--", lw=1)
    axis.text(4e4, LINE_RATE / 1e9 + 6, "line rate of NVLink", color=INK)
    axis.plot(
        sent,
        [n / line.seconds(n) / 1e9 for n in sent],
        color=INK,
        label=f"model: α = {line.latency * 1e6:.0f} µs, W = {line.bandwidth / 1e9:.0f} GB/s",
    )
    for collective, color, marker, label in (
        ("reduce-scatter", RANKS[1], "s", "measured: reduce-scatter around a ring, 8 × H100"),
        ("all-reduce", RANKS[0], "o", "measured: all-reduce as NCCL chooses, 8 × H200"),
    ):
        rows = published(collective)
        axis.plot(
            [row.sent for row in rows],
            [row.bandwidth / 1e9 for row in rows],
            marker,
            color=color,
            label=label,
        )
    axis.set(
        xscale="log",
        ylim=(0, 510),
        xlabel="sent by each GPU",
        ylabel="bus bandwidth (GB/s)",
    )
    axis.set_xticks(list(TICKS), TICKS.values())
    axis.minorticks_off()
    axis.legend(loc="upper left", bbox_to_anchor=(0, 0.86), fontsize=9)
    return figure
