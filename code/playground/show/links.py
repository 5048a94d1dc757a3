"""Comparison of links: latency, bandwidth, and the message size at which both cost the same.

Line rates come from `distributed.planner.hardware`, in one direction. Collectives don't quite reach
them, so the bandwidths here are the fraction `ACHIEVED` of the line rates.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from distributed.planner.hardware import gpu, network
from playground.show.colours import RANKS
from playground.show.figures import use_style
from playground.show.tables import Table

ACHIEVED = 0.8  # of line rate, an assumption
# NCCL's own model of a step around a ring over NVLink, src/graph/tuning.cc: ring, Simple protocol.
NVLINK_LATENCY = 3.4e-6


class Line(NamedTuple):
    """A link, over which a message of n bytes takes latency + n / bandwidth (s; bytes/s)."""

    name: str
    latency: float
    bandwidth: float
    source: str = ""  # of its line rate

    @property
    def even(self) -> float:
        """The size (bytes) of a message that spends as long on latency as on its bytes."""
        return self.latency * self.bandwidth

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


def links() -> list[Line]:
    """From fast to slow. Between hosts, the bandwidth is that of all ports of one host."""
    h100, ndr = gpu("h100"), network("ndr")
    slower = [network(f"ethernet-{speed}") for speed in (100, 10)]
    named = {
        "NVLink, H100": (NVLINK_LATENCY, h100.inside, h100.source),
        "eight ports of 400 Gbit/s per host": (ndr.latency, h100.host_network, h100.host),
        "one port of 400 Gbit/s per host": (ndr.latency, ndr.bandwidth, ndr.source),
        "one port of 100 Gbit/s per host": (slower[0].latency, slower[0].bandwidth, ""),
        "one port of 10 Gbit/s per host": (slower[1].latency, slower[1].bandwidth, ""),
    }
    return [
        Line(name, latency, ACHIEVED * line_rate, source)
        for name, (latency, line_rate, source) in named.items()
    ]


def size_of(n: float) -> str:
    """Bytes in two digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{float(f'{n / unit:.2g}'):g} {name}"
    return f"{n:.0f} B"


def table_of(lines: list[Line]) -> Table:
    """Each link, and the size of a message at which its two costs are the same."""
    rows = [
        (
            line.name,
            f"{line.bandwidth / 1e9:.3g}\xa0GB/s",
            f"{float(f'{line.latency * 1e6:.2g}'):g} µs",
            size_of(line.even),
        )
        for line in lines
    ]
    sources = "; ".join(line.source for line in lines if line.source)
    return Table(["link, one direction", "W", "α", "αW"], rows, f"Line rates: {sources}.")


def measured_figure(sizes: list[int], seconds: list[float], line: Line) -> Figure:
    """Measured times as dots, and the two numbers through them, together and each alone."""
    use_style()
    figure, axis = plt.subplots(figsize=(3.3, 2.8))  # as wide as a phone
    over = np.logspace(np.log10(min(sizes)), np.log10(max(sizes)), 200)
    axis.plot(sizes, np.array(seconds) * 1e6, "o", color=RANKS[0], label="measured")
    axis.plot(over, [line.seconds(n) * 1e6 for n in over], color=RANKS[0], label="α + gn/W")
    axis.axhline(line.latency * 1e6, color=RANKS[1], linestyle=":", label="α alone")
    above = over[over / line.bandwidth > line.latency / 10]
    axis.plot(above, above / line.bandwidth * 1e6, ":", color=RANKS[2], label="gn/W alone")
    axis.set(xscale="log", yscale="log", xlabel="size of the message (bytes)", ylabel="time (µs)")
    axis.legend(fontsize=9)
    return figure
