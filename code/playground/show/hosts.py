"""Bytes and times recorded in the laboratory, for the page about it."""

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.cost import Cluster, Link, all_reduce, step_ddp
from distributed.instruments.wire import LAYERS, SIDE
from distributed.sign_and_low_rank import elements_to_send
from playground.show.colours import RANKS
from playground.show.recorded import stamp
from playground.show.tables import Table

COMPUTE, SPEED = 0.2, 100e6 / 8  # s of a step; bytes/s of a link


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
