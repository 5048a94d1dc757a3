"""Pictures and tables of plans: streams of a step, thresholds, errors of published rows."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distributed.planner.hardware import GIB
from distributed.planner.schedules import STACKS, threshold
from distributed.planner.streams import SimulatedStep, Work, simulate
from distributed.planner.validation import Errors, Run, Verdict, scaling
from playground.show.colours import GREY, KINDS, RANKS
from playground.show.figures import mark_agreement, use_style
from playground.show.tables import Table

LANES = {
    "forward": KINDS["compute"],
    "backward": RANKS[0],
    "gather": RANKS[1],
    "reduce": KINDS["communication"],
    "all-reduce": RANKS[3],
}


def streams(axis: Axes, step: SimulatedStep, until: float | None = None) -> None:
    """What every stream does when."""
    lanes = list(dict.fromkeys(span.stream for span in step.spans))
    lanes.sort(key=["compute", "gather", "reduce", "reduce between hosts"].index)
    for span in step.spans:
        colour = LANES[span.name.split()[0]]
        width = span.end - span.start
        axis.barh(
            lanes.index(span.stream), width, 0.7, left=span.start, color=colour, ec=colour, lw=0.5
        )
    axis.set_yticks(range(len(lanes)), lanes)
    axis.invert_yaxis()
    axis.set(xlabel="seconds", xlim=(0, until or step.total))


def compare_streams(steps: Mapping[str, SimulatedStep]) -> Figure:
    """Several schedules of the same work, one below the other, on one clock."""
    use_style()
    until = max(step.total for step in steps.values())
    figure, axes = plt.subplots(
        len(steps), 1, figsize=(7.2, 0.85 * len(steps) + 0.5), sharex=True, layout="constrained"
    )
    for axis, (name, step) in zip(axes, steps.items(), strict=True):
        streams(axis, step, until)
        axis.set(xlabel="")
        axis.axvline(step.total, color=GREY, ls="--", lw=1)
        waits = step.exposed / step.total
        axis.set_title(f"{name}: {step.total:.2f} s, {waits:.0%} of it waiting", loc="left")
    axes[-1].set(xlabel="seconds")
    return figure


def tokens_that_hide(work: Work, name: str, waits: float = 0.02) -> float:
    """By the simulator: from how many tokens on less than `waits` of a step is exposed.

    `work` is that of one token; halving an interval finds the border.
    """
    low, high = 1.0, 1e9
    for _ in range(20):
        middle = (low * high) ** 0.5
        longer = work._replace(forward=work.forward * middle, backward=work.backward * middle)
        stack = "megatron" if name == "ZeRO-1" else "pytorch"  # PyTorch's hides no broadcast
        step = simulate(STACKS[stack][name], longer)
        low, high = (low, middle) if step.exposed < waits * step.total else (middle, high)
    return high


def threshold_table(
    work: Work, links: Sequence[tuple[str, float, float]], names: Sequence[str]
) -> Table:
    """C/W beside the simulator's border, for speeds (FLOP/s) and links (bytes/s)."""
    rows = []
    for said, speed, bandwidth in links:
        link = work.cluster.between._replace(bandwidth=bandwidth)
        faster = work.cluster.speed / speed
        this = work._replace(
            cluster=work.cluster._replace(inside=link, between=link),
            forward=work.forward * faster, backward=work.backward * faster,
        )  # fmt: skip
        found = [f"{tokens_that_hide(this, name):,.0f}" for name in names]
        rows.append((said, f"{threshold(speed, bandwidth):,.0f}", *found))
    return Table(["", "C/W", *names], rows, "Tokens from which at most 2 % of a step is exposed.")


def error_figure(runs: Iterable[Run]) -> Figure:
    """Published over predicted throughput, by source."""
    use_style()
    figure, axis = plt.subplots(figsize=(7.2, 3.8))
    by_source: dict[str, list[Run]] = {}
    for run in runs:
        by_source.setdefault(run.source, []).append(run)
    for number, (source, mine) in enumerate(by_source.items()):
        across, up = [run.predicted for run in mine], [run.published for run in mine]
        axis.loglog(across, up, "o", ms=4, alpha=0.7, color=RANKS[number], label=source)
    mark_agreement(axis, (300, 2e5), within=0.2)
    axis.set(xlabel="tokens/s of each GPU, predicted", ylabel="published")
    axis.legend()
    return figure


def error_table(runs: Sequence[Run]) -> Table:
    """Errors by source, those first to which nothing was fitted; and of scaling to many hosts."""

    def row(name: str, role: str, errors: Errors) -> tuple[str, ...]:
        shares = (errors.median, errors.nine_in_ten, errors.worst)
        return (name, role, str(errors.of_rows), *(f"{share:.1%}" for share in shares))

    rows = []
    for use, role in (("test", "nothing fitted"), ("calibrate", "speed fitted")):
        of_use = [run for run in runs if run.row["use"] == use]
        sources = dict.fromkeys(run.source for run in of_use)
        for source in sources:
            mine = [run.error for run in of_use if run.source == source]
            rows.append(row(source, role, Errors.of(mine)))
        if len(sources) > 1:
            rows.append(row("together", role, Errors.of(run.error for run in of_use)))
    many = Errors.of(error for _, _, error in scaling(runs))
    rows.append(row("one host to many", "one host given", many))
    header = ["tokens/s of each GPU", "", "rows", "median error", "nine in ten", "worst"]
    return Table(header, rows)


def every_row(runs: Iterable[Run]) -> Table:
    """Each published run with the planner's number beside it."""
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
        "rows",
        "checkpoint",
        "predicted",
        "published",
        "error",
    ]
    return Table(header, rows)


def fits_table(verdicts: Iterable[Verdict]) -> Table:
    """Each configuration published as out of memory, or as running beside it."""
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
    header = ["source", "model", "GPUs", "", "rows", "checkpoint"]
    return Table([*header, "GiB needed", "GiB there", "published", "right"], rows)
