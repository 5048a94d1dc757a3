"""Figures and tables of plans: streams of a step, thresholds, and errors on published runs."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distributed.planner.hardware import GIB
from distributed.planner.published import FITTED, HELD_OUT
from distributed.planner.schedules import STACKS
from distributed.planner.streams import SimulatedStep, Work, simulate
from distributed.planner.validation import Errors, Run, Verdict, grouped
from playground.show.colours import GREY, KINDS, RANKS
from playground.show.figures import use_style
from playground.show.tables import Table

LANES = {
    "forward": KINDS["compute"],
    "backward": RANKS[0],
    "gather": RANKS[1],
    "reduce": KINDS["communication"],
    "all-reduce": RANKS[3],
}


def streams(axis: Axes, step: SimulatedStep, until: float | None = None) -> None:
    """Draw the spans of every stream over time."""
    lanes = list(dict.fromkeys(span.stream for span in step.spans))
    lanes.sort(key=["compute", "gather", "reduce", "reduce between hosts"].index)
    for span in step.spans:
        colour = LANES[span.name.split()[0]]
        start, width = 1e3 * span.start, 1e3 * (span.end - span.start)
        axis.barh(lanes.index(span.stream), width, 0.7, left=start, color=colour, ec=colour, lw=0.5)
    axis.set_yticks(range(len(lanes)), lanes)
    axis.invert_yaxis()
    axis.set(xlabel="ms", xlim=(0, 1e3 * (until or step.total)))


def compare_streams(steps: Mapping[str, SimulatedStep]) -> Figure:
    """Several schedules of the same work, one below the other, on the same time axis."""
    use_style()
    until = max(step.total for step in steps.values())
    figure, axes = plt.subplots(
        len(steps), 1, figsize=(7.2, 0.85 * len(steps) + 0.5), sharex=True, layout="constrained"
    )
    for axis, (name, step) in zip(axes, steps.items(), strict=True):
        streams(axis, step, until)
        axis.set(xlabel="")
        total, waits = 1e3 * step.total, 1e3 * step.exposed
        axis.axvline(total, color=GREY, ls="--", lw=1)
        axis.set_title(f"{name}: {total:.0f} ms, including {waits:.0f} ms of waiting", loc="left")
    axes[-1].set(xlabel="ms")
    return figure


def tokens_that_hide(work: Work, name: str, waits: float = 0.02) -> float:
    """Threshold by the simulator: tokens from which less than `waits` of a step is exposed.

    `work` is that of one token; bisection finds the threshold.
    """
    low, high = 1.0, 1e9
    for _ in range(20):
        middle = (low * high) ** 0.5
        longer = work._replace(forward=work.forward * middle, backward=work.backward * middle)
        stack = "megatron" if name == "ZeRO-1" else "pytorch"  # PyTorch's can't hide broadcasts
        step = simulate(STACKS[stack][name], longer)
        low, high = (low, middle) if step.exposed < waits * step.total else (middle, high)
    return high


def error_table(runs: Sequence[Run], together: str, apart: Sequence[Run] = ()) -> Table:
    """Errors by source, of all runs as `together` (unless it is empty), and of some `apart`."""

    def row(name: str, errors: Errors) -> tuple[str, ...]:
        shares = (errors.median, errors.nine_in_ten, errors.worst)
        return (name, str(errors.of_rows), *(f"{share:.1%}" for share in shares))

    sources = dict.fromkeys(run.source for run in runs)
    rows = [row(each, Errors.of(r.error for r in runs if r.source == each)) for each in sources]
    if together:
        rows.append(row(together, Errors.of(run.error for run in runs)))
    if apart:
        name = f"{apart[0].source}, on a slower network"
        rows.append(row(name, Errors.of(run.error for run in apart)))
    return Table(["source", "runs", "median error", "nine in ten", "worst"], rows)


def grouped_table(runs: Iterable[Run], kinds: Iterable[str]) -> Table:
    """Median, nine in ten, worst and bias of each group of these kinds: see `validation.GROUPS`."""
    rows = [
        (kind, name, str(errors.of_rows), f"{errors.median:.1%}", f"{errors.nine_in_ten:.1%}",
         f"{errors.worst:.1%}", f"{errors.bias:+.1%}")
        for kind, name, errors in grouped(runs)
        if kind in kinds
    ]  # fmt: skip
    header = ["", "", "runs", "median error", "nine in ten", "worst", "bias"]
    return Table(header, rows)


def error_strip(runs: Sequence[Run]) -> Figure:
    """The error of every run, one row per source; below a line, the source of the curve.

    Above it, runs that one of the other constants was fitted to are gray, too.
    """
    use_style()
    curve = [run for run in runs if run.row["use"] == "calibrate"]
    others = [run for run in runs if run.row["use"] != "calibrate"]
    sources = dict.fromkeys(run.source for run in [*others, *curve])
    figure, axis = plt.subplots(figsize=(7.2, 0.36 * len(sources) + 0.9), layout="constrained")
    names = []
    for line, source in enumerate(sources):
        mine = [run for run in runs if run.source == source]
        names.append(f"{source}, fitted" if mine[0].row["use"] == "calibrate" else source)
        for colour, uses in ((GREY, ("calibrate", FITTED)), (RANKS[0], HELD_OUT)):
            errors = [100 * run.error for run in mine if run.row["use"] in uses]
            axis.plot(errors, [line] * len(errors), "o", ms=6, alpha=0.85, color=colour)
    axis.axvline(0, color=GREY, lw=1)
    axis.axhline(len(sources) - 1.5, color=GREY, lw=1, ls="--")
    axis.set_yticks(range(len(sources)), names)
    axis.invert_yaxis()
    axis.set(xlabel="tokens/s of each GPU: prediction over what was published, − 1 (%)")
    return figure


def every_row(runs: Iterable[Run]) -> Table:
    """Each published run, next to the planner's number."""
    rows = [
        (
            run.source, run.row["model"], f"{run.gpus} × {run.row['gpu']}", run.row["strategy"],
            f"{run.row['rows']} × {run.row['context']}", run.row["checkpoint"],
            f"{run.predicted:,.0f}", f"{run.published:,.0f}", f"{run.error:+.1%}",
        )
        for run in runs
    ]  # fmt: skip
    header = [
        "source",
        "model",
        "GPUs",
        "",
        "sequences",
        "checkpoint",
        "predicted",
        "published",
        "error",
    ]
    return Table(header, rows)


def fits_table(verdicts: Iterable[Verdict]) -> Table:
    """Each configuration published as out of memory, and those from the same sources that ran."""
    rows = []
    for found in verdicts:
        row, right = found.row, "yes" if found.right else "no"
        job = (
            f"{row['gpus']} × {row['gpu']}",
            row["strategy"],
            f"{row['rows']} × {row['context']}",
        )
        sizes = (f"{found.needs / GIB:.1f}", f"{found.memory / GIB:.1f}")
        rows.append(
            (row["source"], row["model"], *job, row["checkpoint"], *sizes, row["unit"], right)
        )
    header = ["source", "model", "GPUs", "", "sequences", "checkpoint"]
    return Table([*header, "GiB needed", "GiB there", "published", "right"], rows)
