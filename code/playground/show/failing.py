"""Effects of a failure on a run, and how often to save: figures, a calculator, recorded accidents.

The formulas are written again for the calculator. A test moves the sliders and compares with
`distributed.checkpoint_interval` and `distributed.planner.published`.
"""

import math
import statistics
from typing import Any

import altair as alt
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from distributed.planner.published import failures
from playground.show.chart import Calculator, slider, style
from playground.show.colours import GREY, KINDS, RANKS
from playground.show.recorded import stamp
from playground.show.tables import Table

RESTART = 2.0  # minutes from a failure until ranks compute again: assumed
MINUTES = [2 ** (i / 8 - 2) for i in range(97)]  # between checkpoints: 15 s to 17 hours
SILENT = "a host loses power", "a cable is pulled", "the first host loses power"


def one_accident() -> Figure:
    """Four ranks: two steps and a save, one dies, others wait, all begin again from the save."""
    figure, axis = plt.subplots(figsize=(7.2, 2.4))
    saving, twice = RANKS[2], RANKS[1]
    blocks = [(0.0, "compute"), (1.0, "compute"), (2.0, saving), (2.5, "compute")]
    for rank in range(4):
        for left, kind in blocks:
            width = 0.5 if kind == saving else 1.0
            axis.barh(rank, width, left=left, color=KINDS.get(kind, kind), edgecolor="white")
        dies = rank == 1
        axis.barh(rank, 0.6 if dies else 1.0, left=3.5, color=KINDS["compute"], edgecolor="white")
        if not dies:
            axis.barh(rank, 1.6, left=4.5, color=KINDS["waiting"], edgecolor="white")
        for left, kind in [(7.0, twice), (8.0, twice), (9.0, "compute")]:
            axis.barh(rank, 1.0, left=left, color=KINDS.get(kind, kind), edgecolor="white")
    axis.text(4.2, 1, "✕", ha="center", va="center", fontsize=14, color=KINDS["communication"])
    axis.text(6.55, 1.5, "start\nagain", ha="center", va="center", color=GREY)
    legend = {
        "a step": KINDS["compute"], "a save": saving, "waits": KINDS["waiting"],
        "a repeated step": twice,
    }  # fmt: skip
    axis.legend(
        [Patch(color=colour) for colour in legend.values()],
        [*legend], ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1),
    )  # fmt: skip
    axis.set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
    axis.set(xlabel="time", xticks=[], xlim=(0, 10.1))
    axis.invert_yaxis()
    return figure


def interval_calculator() -> Calculator:
    """The share of time that is lost, over the time between checkpoints."""
    seen = failures()
    between = f"{seen.between(1)} / pow(2, doublings)"
    given = {"between": between, "saving": "pow(10, save)"}
    base = (
        alt.Chart(alt.Data(values=[{"minutes": m, "seconds": 60 * m} for m in MINUTES]))
        .transform_calculate(**given)
        .transform_calculate(
            saves="datum.saving / datum.seconds",
            repeated="(datum.seconds / 2 + 60 * restart) / datum.between",
        )
        .transform_calculate(
            **{"repeated work": "datum.repeated", "lost in all": "datum.saves + datum.repeated"}
        )
        .transform_fold(["saves", "repeated work", "lost in all"], as_=["part", "share"])
    )
    x = alt.X(
        "minutes:Q",
        scale=alt.Scale(type="log", domain=[0.25, 1024]),
        axis=alt.Axis(title="minutes between checkpoints", values=[0.25, 1, 4, 15, 60, 240, 960]),
    )
    lines = base.mark_line(strokeWidth=2.5, clip=True).encode(
        x=x,
        y=alt.Y(
            "share:Q", scale=alt.Scale(domain=[0, 0.5]), axis=alt.Axis(title="share", format="%")
        ),
        color=alt.Color(
            "part:N",
            scale=alt.Scale(domain=["lost in all", "saves", "repeated work"],
                            range=[RANKS[0], RANKS[2], RANKS[1]]),
            legend=alt.Legend(title=None, orient="top"),
        ),
    )  # fmt: skip
    best = (
        alt.Chart(alt.Data(values=[{}]))
        .transform_calculate(**given)
        .transform_calculate(best="sqrt(2 * datum.saving * datum.between)")
        .transform_calculate(
            minutes="datum.best / 60",
            lost="datum.saving / datum.best + (datum.best / 2 + 60 * restart) / datum.between",
        )
        .transform_calculate(
            said="'best:;' + format(datum.minutes, ',.2~r') + ' min,;' + format(datum.lost, '.1%')"
        )
        .transform_filter("datum.minutes > 0.25 && datum.minutes < 1024")
    )
    rule = best.mark_rule(strokeDash=[4, 4], opacity=0.7).encode(x=x)
    said = best.mark_text(dx=6, dy=10, align="left", baseline="top", lineBreak=";").encode(
        x=x, y=alt.value(0), text="said:N"
    )
    chart = alt.layer(lines, rule, said).add_params(
        *slider(
            "doublings", "GPUs", (3, 17, 1), math.log2(seen.gpus), "format(pow(2, doublings), ',')"
        ),
        *slider(
            "save", "a save takes", (0, 3, 0.05), math.log10(60),
            "format(pow(10, save), '.2~r') + ' s'",
        ),
        *slider(
            "restart", "noticing and restarting takes", (0.5, 30, 0.5), RESTART,
            "format(restart, '~r') + ' min'",
        ),
    )  # fmt: skip
    return Calculator(
        style(chart),
        "The share of time that is lost over the minutes between checkpoints, for 16,384 GPUs, "
        "saves of one minute, and restarts of two: a curve that falls, is lowest at 19 minutes "
        "with 11.5 percent, and rises again. It is the sum of a falling line for saves and a "
        "rising one for repeated work.",
    )


def noticed(accidents: dict[str, Any]) -> list[tuple[str, float, float, float, float]]:
    """Each accident: seconds until it was noticed, predicted and measured; again; on ranks."""
    pace, patience = (accidents["training"][name] for name in ("pace", "patience"))
    found = []
    for name, runs in accidents["runs"].items():
        predicted = pace + (patience if name in SILENT else 0)
        after, again, ranks = (
            statistics.median(run[key] for run in runs) for key in ("noticed", "again", "ranks")
        )
        found.append((name, predicted, after, again, ranks))
    return found


def noticed_table(accidents: dict[str, Any]) -> Table:
    rows = []
    for name, predicted, after, again, ranks in noticed(accidents):
        times = [f"{predicted:.1f} s", f"{after:.1f} s", f"{after - predicted:+.1f} s"]
        rows.append((name, *times, f"{again:.0f} s", f"{ranks:.0f}"))
    header = [
        "accident",
        "noticed, predicted",
        "measured",
        "difference",
        "training resumes after",
        "ranks left",
    ]
    return Table(header, rows, stamp(accidents))


def elastic_figure(elastic: dict[str, Any]) -> Figure:
    """Losses of four ranks, of three after an accident, and of four again, on those of one go."""
    figure, axis = plt.subplots(figsize=(6, 3))
    axis.plot(range(1, len(elastic["once"]) + 1), elastic["once"], color=GREY, label="in one go")
    for ranks, colour in ((4, RANKS[0]), (3, RANKS[1])):
        at = [step for step, there in dict(elastic["done"]).items() if there == ranks]
        losses = [elastic["losses"][step - 1] for step in at]
        axis.plot(at, losses, "o", ms=4, color=colour, label=f"{ranks} ranks")
    axis.set(xlabel="step", ylabel="loss")
    axis.legend()
    return figure
