"""The recorded sweep over bucket sizes (`bench/bucket_sizes.py`) beside what the formulas say."""

import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.instruments.sync_recorder import Costs, best_size, predict_step
from playground.show.colours import RANKS
from playground.show.recorded import FOLDER, stamp
from playground.show.tables import Table


def read() -> dict[str, Any]:
    return json.loads((FOLDER / "bucket_sizes.json").read_text())


def costs_of(swept: dict[str, Any], link: str) -> Costs:
    """What was measured of the parts of a step: a third of what is computed is the forward pass."""
    run = swept[link]
    return Costs(run["alpha"], run["beta"], run["computed"] / 3, run["computed"] * 2 / 3)


def predicted(swept: dict[str, Any], link: str, bucket: float) -> float:
    """Seconds of a step with buckets of so many bytes, followed one by one."""
    whole = swept["bytes"]
    count = round(whole / bucket)
    return predict_step(costs_of(swept, link), [whole / count] * count)


def best_by_formula(swept: dict[str, Any], link: str) -> float:
    """The size (bytes) that the chapter's two formulas give, the smaller of them."""
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
    figure, axis = plt.subplots(figsize=(3.3, 3.9))  # as wide as a phone
    for colour, link in zip(RANKS, ("100Mbit", "1000Mbit"), strict=False):
        steps = swept[link]["steps"]
        sizes = [row["bucket"] for row in steps]
        name = link.replace("Mbit", " Mbit/s")
        axis.plot(
            sizes,
            [row["seconds"] * 1e3 for row in steps],
            "o",
            color=colour,
            label=f"{name}, measured",
        )
        axis.plot(
            sizes,
            [predicted(swept, link, s) * 1e3 for s in sizes],
            "-",
            color=colour,
            label="predicted",
        )
        best = best_by_formula(swept, link)
        axis.axvline(best, color=colour, ls=":", lw=1)
    axis.set(
        xscale="log",
        xlabel="bytes of a bucket\n(dotted: best by the formula)",
        ylabel="a step (ms)",
    )
    axis.set_ylim(0, None)
    axis.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure
