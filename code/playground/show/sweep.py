"""The recorded sweep of collectives over sizes and ranks, and how well two numbers predict it.

α and β are fitted to the all-reduces of four ranks, once with what the busiest rank sends and once
with what all ranks send together; everything else is then predicted with them.
"""

import json
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from distributed.algorithms import SENT as ALL_REDUCE_SENT
from distributed.collectives import SENT
from distributed.workbench.measure import fit
from playground.show import recorded
from playground.show.colours import RANKS
from playground.show.figures import use_style
from playground.show.tables import Table

Row = dict[str, Any]
WAYS: dict[str, Callable[..., Any]] = {"the busiest rank": max, "all ranks together": sum}
SENDS = SENT | {("all_reduce", algorithm): sent for algorithm, sent in ALL_REDUCE_SENT.items()}


class Sweep:
    """What `python -m bench.sweep --record` kept, with α (s) and β (s/byte) for each of WAYS."""

    def __init__(self) -> None:
        kept = json.loads((recorded.FOLDER / "sweep.json").read_text())
        self.stamp = f"{recorded.stamp(kept)}. Repeat: python -m bench.sweep --record"
        self.rows: list[Row] = kept["rows"]
        self.all_reduces = [
            row
            for row in self.rows
            if row["op"] == "all_reduce" and row["algorithm"] in ALL_REDUCE_SENT
        ]
        self.four = [row for row in self.all_reduces if row["ranks"] == 4]
        self.fits = {}
        for way, whose in WAYS.items():
            messages, sizes = zip(*(counts(row, whose) for row in self.four), strict=True)
            self.fits[way] = fit(messages, sizes, [row["s"] for row in self.four])

    def predicted(self, row: Row, way: str) -> float:
        """Seconds of a row's collective, by the model in which `way` is what counts."""
        return float(self.fits[way] @ counts(row, WAYS[way]))

    def misses(self, rows: list[Row], way: str) -> tuple[float, float]:
        """How far predictions are from the times, as a share: the median and the largest."""
        errors = [abs(self.predicted(row, way) / row["s"] - 1) for row in rows]
        return float(np.median(errors)), max(errors)

    def fastest(self, size: int, ranks: int = 4) -> list[str]:
        """The algorithms of all-reduce in the order of their times."""
        rows = [r for r in self.all_reduces if r["ranks"] == ranks and r["bytes"] == size]
        return [row["algorithm"] for row in sorted(rows, key=lambda row: row["s"])]

    def table_of_fits(self) -> Table:
        rows = []
        for way, (alpha, beta) in self.fits.items():
            rate = f"{1e-9 / beta:.2f} GB/s" if beta else "—"
            middle, most = self.misses(self.four, way)
            rows.append((way, f"{alpha * 1e6:.0f} µs", rate, f"{middle:.0%}", f"{most:.0%}"))
        header = ["what counts is sent by", "α", "1/β", "median error", "largest error"]
        return Table(header, rows, self.stamp)

    def table_of_other_ranks(self) -> Table:
        """The same two numbers for other numbers of ranks, which they have not seen."""
        rows = []
        for ranks in sorted({row["ranks"] for row in self.all_reduces} - {1}):
            own = [row for row in self.all_reduces if row["ranks"] == ranks]
            errors = [f"{self.misses(own, way)[0]:.0%}" for way in WAYS]
            rows.append((f"{ranks}, fitted" if ranks == 4 else ranks, *errors))
        header = ["ranks", *(f"median error, {way}" for way in WAYS)]
        return Table(header, rows, self.stamp)

    def table_of_other_collectives(self) -> Table:
        """And for collectives that they have not seen either."""
        rows = []
        for op, algorithm in SENT:
            own = [
                r for r in self.rows if (r["op"], r["algorithm"], r["ranks"]) == (op, algorithm, 4)
            ]
            errors = [f"{self.misses(own, way)[0]:.0%}" for way in WAYS]
            rows.append((f"{op}, {algorithm}", *errors))
        header = ["4 ranks", *(f"median error, {way}" for way in WAYS)]
        return Table(header, rows, self.stamp)

    def table_of_choices(self) -> Table:
        """The fastest all-reduce of four ranks, and the one that each model would choose."""
        rows = []
        for size in sorted({row["bytes"] for row in self.four}):
            of_size = {row["algorithm"]: row for row in self.four if row["bytes"] == size}
            best = self.fastest(size)[0]
            picks = [min(of_size, key=lambda a: self.predicted(of_size[a], way)) for way in WAYS]
            slower = [f"{pick}, {of_size[pick]['s'] / of_size[best]['s']:.2f}×" for pick in picks]
            rows.append((f"{size:,}", best, *slower))
        header = ["bytes", "fastest, measured", *(f"chosen by {way}" for way in WAYS)]
        return Table(header, rows, "× is the measured time of the choice, beside the fastest")

    def figure(self) -> Figure:
        """Time over size for each algorithm on four ranks: dots measured, lines by both models."""
        use_style()
        figure, axes = plt.subplots(2, 3, figsize=(7.2, 4.2), sharex=True, sharey=True)
        for axis, name in zip(axes.flat, ALL_REDUCE_SENT, strict=True):
            rows = [row for row in self.four if row["algorithm"] == name]
            x = [row["bytes"] for row in rows]
            axis.plot(x, [row["s"] * 1e3 for row in rows], "o", color=RANKS[0], ms=4)
            for way, style in zip(WAYS, (":", "-"), strict=True):
                y = [self.predicted(row, way) * 1e3 or np.nan for row in rows]
                axis.plot(x, y, style, color=RANKS[0], lw=1.2)
            axis.set(title=name, xscale="log", yscale="log")
        figure.supxlabel("size of the array (bytes)", fontsize=10)
        figure.supylabel("time (ms)", fontsize=10)
        return figure


def counts(row: Row, whose: Callable[..., Any]) -> tuple[int, int]:
    """Messages and bytes that count."""
    of_rank, ranks = SENDS[row["op"], row["algorithm"]], row["ranks"]
    sent = [of_rank(row["bytes"] // 4, rank, ranks) for rank in range(ranks)]
    return whose(s.messages for s in sent), 4 * whose(s.elements for s in sent)
