"""Published and recorded scaling next to the model's: tables and figures of one page."""

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.cost import Cluster, Link, step_ddp
from distributed.instruments.wire import LAYERS, SIDE
from distributed.planner.published import CASES, WRAPPED
from distributed.planner.validation import Errors, runs
from distributed.planner.validation import scaling as to_many_hosts
from playground.show.colours import RANKS
from playground.show.figures import mark_agreement
from playground.show.recorded import stamp
from playground.show.tables import Table

COMPUTE = 0.2  # s, a step of the laboratory's network, by waiting


def of_hosts(recorded: dict[str, Any]) -> list[tuple[int, float, float, float]]:
    """Hosts, Mbit/s, and the efficiency against one host: predicted, and recorded."""
    layers, found = [4.0 * SIDE**2] * LAYERS, []
    for name, row in recorded["hosts"].items():
        hosts, speed = int(name.split()[0]), float(name.split()[-1].removesuffix("Mbit"))
        alone = recorded["hosts"][f"1 at {name.split()[-1]}"]["seconds"]
        link = Link(0, speed * 1e6 / 8)  # nothing else is known about the hosts
        cluster = Cluster(hosts, 1, Link(0, math.inf), link, speed=1)
        predicted = COMPUTE / step_ddp(cluster, COMPUTE, layers).total
        if hosts > 1:
            found.append((hosts, speed, predicted, alone / row["seconds"]))
    return found


def hosts_table(recorded: dict[str, Any]) -> Table:
    rows = [
        (
            hosts,
            f"{speed:,.0f} Mbit/s",
            f"{ours:.0%}",
            f"{seen:.0%}",
            f"{round(100 * seen) - round(100 * ours):+d}",
        )
        for hosts, speed, ours, seen in of_hosts(recorded)
    ]
    header = ["hosts", "links", "efficiency, predicted", "measured", "difference (points)"]
    return Table(header, rows, stamp(recorded))


def published_figure() -> Figure:
    """Published over predicted: DDP's efficiency, and many hosts against one of transformers."""
    figure, axis = plt.subplots(figsize=(6, 4))
    many = to_many_hosts(runs())
    axis.plot(
        [run.predicted / few.predicted for run, few, _ in many],
        [run.published / few.published for run, few, _ in many],
        "o", ms=4, alpha=0.85, color=RANKS[0], label=f"ZeRO, {len(many)} runs of language models",
    )  # fmt: skip
    axis.plot(
        [case.predicted for case in CASES], [case.efficiency for case in CASES],
        "o", ms=4, color=RANKS[1], label=f"DDP, {len(CASES)} benchmarks",
    )  # fmt: skip
    mark_agreement(axis, (0.5, 1.4), within=0.1)
    axis.set(xlabel="throughput of a GPU on many ÷ on few, predicted", ylabel="published")
    axis.legend()
    return figure


def errors_of_many() -> Errors:
    """Of predicted throughput on many hosts, that on few being known."""
    return Errors.of(error for _, _, error in to_many_hosts(runs()))


def errors_of_no_loss() -> Errors:
    """Of predicting that nothing is lost on many hosts."""
    pairs = [(run, few) for run, few, _ in to_many_hosts(runs())]
    return Errors.of(few.published / run.published - 1 for run, few in pairs)


def cases_table() -> Table:
    rows = [
        (
            case.name, f"{case.base} to {case.ranks}", f"{case.predicted:.0%}",
            f"{case.efficiency:.0%}", f"{case.deviation:+.0%}", case.source,
        )
        for case in CASES
    ]  # fmt: skip
    return Table(["DDP", "GPUs", "predicted", "published", "too high by", "source"], rows)


def wrapped_table() -> Table:
    """What DDP costs on one GPU already, as a share of the slow-down on many."""
    rows = [
        (
            steps.model, *(f"{1e3 * t:.0f} ms" for t in (steps.alone, steps.wrapped, steps.many)),
            f"{steps.slowdown:.1%}", f"{steps.from_wrapping:.0%}",
        )
        for steps in WRAPPED
    ]  # fmt: skip
    header = ["", "no DDP", "DDP on 1 GPU", "on 16", "slow-down", "of it on 1 GPU"]
    note = "PyTorch 1.4, benchmarks/distributed/ddp/README.md, medians on V100s"
    return Table(header, rows, note)
