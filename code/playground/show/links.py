"""Links beside each other: latency, bandwidth, and the size of message at which both cost the same.

Bandwidths come from `distributed.planner.hardware`, per GPU and in one direction.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from distributed.planner.hardware import gpu, network
from playground.show.colours import RANKS
from playground.show.figures import use_style
from playground.show.tables import Table

# NCCL's own model of a step around a ring over NVLink, src/graph/tuning.cc: ring, Simple protocol.
NVLINK_LATENCY = 3.4e-6


class Line(NamedTuple):
    """A link: a message of n bytes takes latency + n / bandwidth (s; bytes/s)."""

    name: str
    latency: float
    bandwidth: float
    source: str = ""  # of its bandwidth

    @property
    def even(self) -> float:
        """The size (bytes) of a message that spends as long on latency as on its bytes."""
        return self.latency * self.bandwidth

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


def links() -> list[Line]:
    """From fast to slow."""
    h100, ndr = gpu("h100"), network("ndr")
    named = {"Ethernet, 100 Gbit/s": "ethernet-100", "Ethernet, 10 Gbit/s": "ethernet-10"}
    ethernets = [Line(title, *network(name)[1::-1], network(name).source)
                 for title, name in named.items()]  # fmt: skip
    return [
        Line("NVLink, H100", NVLINK_LATENCY, h100.inside, h100.source),
        Line("a host's eight ports of 400 Gbit/s", ndr.latency, h100.host_network, h100.host),
        Line("one port of 400 Gbit/s", ndr.latency, ndr.bandwidth, ndr.source),
        *ethernets,
    ]


def size_of(n: float) -> str:
    """Bytes in two digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{float(f'{n / unit:.2g}'):g} {name}"
    return f"{n:.0f} B"


def table_of(lines: list[Line], ranks: int = 64) -> Table:
    """Each link, where its two costs are even, and where they are for a ring of `ranks`."""
    rows = [
        (
            line.name,
            f"{line.bandwidth / 1e9:.3g}\xa0GB/s",
            f"{float(f'{line.latency * 1e6:.2g}'):g} µs",
            size_of(line.even),
            size_of(ranks * line.even),
        )
        for line in lines
    ]
    sources = "; ".join(line.source for line in lines if line.source)
    header = ["link, one direction", "W", "α", "even at αW", f"ring of {ranks}: NαW"]
    return Table(header, rows, f"Bandwidths: {sources}.")


def figure_of(lines: list[Line]) -> Figure:
    """Time of a message over its size, with a dot where latency and bytes cost the same."""
    use_style()
    sizes = np.logspace(1, 9, 200)
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    for line, colour in zip(lines, RANKS, strict=False):
        axis.plot(sizes, [line.seconds(n) * 1e6 for n in sizes], color=colour, label=line.name)
        axis.plot([line.even], [line.seconds(line.even) * 1e6], "o", color=colour, ms=7)
    axis.set(xscale="log", yscale="log", xlabel="size of the message (bytes)", ylabel="time (µs)")
    axis.legend(fontsize=9)
    return figure


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
