"""Recorded sweep over bucket sizes (`bench/bucket_sizes.py`), next to the formulas' predictions."""

import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from distributed.instruments.sync_recorder import Costs, best_size, predict_step
from playground.show.colours import GREY, INK, RANKS
from playground.show.recorded import FOLDER, stamp
from playground.show.tables import Table


def read() -> dict[str, Any]:
    return json.loads((FOLDER / "bucket_sizes.json").read_text())


def costs_of(swept: dict[str, Any], link: str) -> Costs:
    """Measured costs of the parts of a step; the forward pass is a third of the computation."""
    run = swept[link]
    return Costs(run["alpha"], run["beta"], run["computed"] / 3, run["computed"] * 2 / 3)


def predicted(swept: dict[str, Any], link: str, bucket: float) -> float:
    """Seconds of a step with buckets of `bucket` bytes, simulated bucket by bucket."""
    whole = swept["bytes"]
    count = round(whole / bucket)
    return predict_step(costs_of(swept, link), [whole / count] * count)


def best_by_formula(swept: dict[str, Any], link: str) -> float:
    """Bucket size (bytes) by the chapter's formulas: the best one if the network is slower than
    the computation; if it is faster, S_least, at which messages just keep up."""
    return best_size(costs_of(swept, link), swept["bytes"])


def table_of(swept: dict[str, Any], link: str) -> Table:
    rows = []
    for row in swept[link]["steps"]:
        ours = predicted(swept, link, row["bucket"])
        rows.append(
            (
                f"{swept['bytes'] // row['bucket']} of {row['bucket'] / 1e3:,.0f}\xa0kB",
                f"{ours * 1e3:.0f} ms",
                f"{row['seconds'] * 1e3:.0f} ms",
                f"{row['seconds'] / ours - 1:+.0%}",
            )
        )
    best = best_by_formula(swept, link)
    note = f"Best size by the formula: {best / 1e3:,.0f} kB. {stamp(swept)}"
    return Table(["buckets", "predicted", "measured", "difference"], rows, note)


def figure_of(swept: dict[str, Any]) -> Figure:
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    marked = {"100Mbit": "best by the formula", "1000Mbit": r"$S_\mathrm{least}$"}
    for color, (link, mark) in zip(RANKS, marked.items(), strict=False):
        steps = swept[link]["steps"]
        sizes = [row["bucket"] / 1e3 for row in steps]
        axis.plot(sizes, [row["seconds"] * 1e3 for row in steps], "o", color=color)
        axis.plot(
            sizes, [predicted(swept, link, row["bucket"]) * 1e3 for row in steps], "-", color=color
        )
        axis.annotate(
            f"{int(link.removesuffix('Mbit')):,} Mbit/s",
            (sizes[-1], steps[-1]["seconds"] * 1e3),
            (0, 8),
            textcoords="offset points",
            ha="right",
            color=INK,
        )
        best = best_by_formula(swept, link) / 1e3
        axis.axvline(best, color=color, ls=":", lw=1.5)
        axis.annotate(f" {mark}\n {best:,.0f} kB", (best, 20), color=INK, fontsize=9)
    axis.set(xscale="log", xlabel="size of a bucket (kB)", ylabel="a step (ms)")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylim(0, 600)
    axis.legend(
        handles=[
            Line2D([], [], marker="o", ls="", label="measured", color=GREY),
            Line2D([], [], label="predicted", color=GREY),
        ],
        fontsize=9,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
    )
    return figure
