"""Rings over two hosts, and the bytes that the laboratory's NICs sent: *From one host to many*."""

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from distributed.cost import Cluster, Link, all_reduce, step_ddp
from distributed.instruments.wire import LAYERS, SIDE
from distributed.powersgd import elements_to_send
from playground.show.colours import GREY, KINDS, RANKS
from playground.show.recorded import stamp
from playground.show.tables import Table

ARROWS = {
    "a ring in order": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "a ring in another order": [(0, 2), (2, 1), (1, 3), (3, 0)],
    "by hosts": [(0, 1), (2, 3), (0, 2), (1, 3)],
}
COMPUTE, SPEED = 0.2, 100e6 / 8  # s of a step; bytes/s of a link


def arrangements() -> Figure:
    """Two hosts of two ranks: arrows that stay inside a host, and arrows that leave it."""
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.1))
    for axis, (title, pairs) in zip(axes, ARROWS.items(), strict=True):
        one_arrangement(axis, pairs, "-|>" if "ring" in title else "<|-|>")
        axis.set(title=title, xlim=(-0.8, 3.8), ylim=(-1.2, 1.2), xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def one_arrangement(axis: Axes, pairs: list[tuple[int, int]], style: str) -> None:
    places = [(0.0, 0.5), (0.0, -0.5), (3.0, 0.5), (3.0, -0.5)]
    for left in (-0.5, 2.5):
        axis.add_patch(
            FancyBboxPatch((left, -0.9), 1, 1.8, boxstyle="round,pad=0.05", fc="none", ec=GREY)
        )
    for a, b in pairs:
        leaves = (a < 2) != (b < 2)
        bend = -0.3 if (a, b) == (0, 2) else 0.12 if leaves else 0
        axis.add_patch(
            FancyArrowPatch(
                places[a], places[b], connectionstyle=f"arc3,rad={bend}", arrowstyle=style,
                mutation_scale=11, shrinkA=10, shrinkB=10, lw=2,
                color=KINDS["communication" if leaves else "compute"],
            )
        )  # fmt: skip
    for rank, (x, y) in enumerate(places):
        axis.plot(x, y, "o", ms=17, color=RANKS[rank])
        axis.text(x, y, str(rank), ha="center", va="center", color="black")


def nic_table(recorded: dict[str, Any]) -> Table:
    """Bytes of one host, by the formula and by the kernel's counter."""
    rows = [
        (
            row["name"], f"{row['payload']:,.0f}", f"{row['wire']:,.0f}",
            f"{row['wire'] / row['payload'] - 1:+.1%}",
        )
        for row in recorded["bytes"]
        if row["payload"]
    ]  # fmt: skip
    header = ["", "payload, predicted (bytes)", "the NIC sent", "difference"]
    return Table(header, rows, stamp(recorded))


def bandwidth_figure(recorded: dict[str, Any]) -> Figure:
    """Time of an all-reduce of 1 MB over bandwidth; lines are payload ÷ bandwidth."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    speeds = {name: float(name.removesuffix("Mbit")) for name in recorded["bandwidths"]}
    for i, (colour, name) in enumerate(zip(RANKS, ("ring", "hierarchical", "gloo"), strict=False)):
        measured = [recorded["bandwidths"][b][i] for b in speeds]
        times = [m["seconds"] * 1e3 for m in measured]
        axis.loglog([*speeds.values()], times, "o", color=colour, label=name)
        if measured[0]["payload"]:
            line = [
                m["payload"] * 8e3 / (speed * 1e6)
                for m, speed in zip(measured, speeds.values(), strict=True)
            ]
            axis.loglog([*speeds.values()], line, color=colour, lw=1)
    axis.set(xlabel="bandwidth of each host (Mbit/s)", ylabel="all-reduce of 1 MB (ms)")
    axis.legend()
    return figure


def hosts_of(hosts: int, speed: float) -> Cluster:
    """All that a prediction knows: a link of each host, that takes no time to begin.

    Ranks that first add up inside their host, in no time, are one rank to the network.
    """
    return Cluster(hosts, 1, Link(0, math.inf), Link(0, speed), speed=1)


def ways(recorded: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    """Each way to average at 100 Mbit/s: bytes of a host, seconds predicted and measured."""
    gradients = 4.0 * LAYERS * SIDE**2
    layers = [gradients / LAYERS] * LAYERS
    one_ring, by_hosts = hosts_of(4, SPEED), hosts_of(2, SPEED)
    small = 4 * elements_to_send([(SIDE, SIDE)] * LAYERS, 4)
    predicted = {
        "by hand": COMPUTE + all_reduce(one_ring, gradients),
        "one bucket": COMPUTE + all_reduce(one_ring, gradients),
        "overlapped": step_ddp(one_ring, COMPUTE, layers).total,
        "hierarchical": step_ddp(by_hosts, COMPUTE, layers).total,
        # compressors send before the backward pass goes on
        "bf16": COMPUTE + all_reduce(one_ring, gradients / 2),
        "PowerSGD": COMPUTE + all_reduce(one_ring, small),
    }
    found = []
    for row in recorded["ways"]:
        way = row["name"].removeprefix("train: ")
        found.append((way, row["wire"], predicted[way], row["seconds"]))
    return found


def ways_table(recorded: dict[str, Any]) -> Table:
    rows = [
        (way, f"{wire:,.0f}", f"{ours:.3f} s", f"{seen:.3f} s", f"{seen / ours - 1:+.0%}")
        for way, wire, ours, seen in ways(recorded)
    ]
    header = ["", "bytes of a host", "step, predicted", "measured", "difference"]
    return Table(header, rows, stamp(recorded))
