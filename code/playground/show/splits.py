"""What splitting the network sends, and how long a pipeline waits, beside the formulas."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.all_reduce import ring_sent
from distributed.pipeline_parallel import (
    bubble,
    elements_sent,
    on_a_mesh,
    run_rank,
    waiting,
)
from distributed.tensor_parallel import train_rank
from playground.show.colours import RANKS
from playground.show.tables import Table

HIDDEN, WIDTH, OUT = 128, 64, 10  # the network of the first chapter: x[b, d] → h[b, f] → y[b, o]
PAUSE = 0.008  # s, that a stage of the pipeline waits as if it computed
Row = tuple[str, float, float]  # what, predicted, measured
Run = Callable[..., list[Any]]


def assembly_line(stages: int = 4, counts: tuple[int, ...] = (2, 8)) -> Figure:
    """When each stage of a pipeline works, by the schedule: first all forward, then all back."""
    figure, axes = plt.subplots(
        len(counts), 1, figsize=(7.2, 1.7 * len(counts) + 0.3), layout="constrained"
    )
    for axis, micro in zip(axes, counts, strict=True):
        for stage in range(stages):
            for i in range(micro):
                forward = (stage + i) / micro
                back = (stages - 1 + micro + 2 * (stages - 1 - stage + i)) / micro
                for left, width, colour in ((forward, 1, RANKS[0]), (back, 2, RANKS[2])):
                    axis.barh(stage, width / micro, left=left, color=colour, edgecolor="white")
        title = (
            f"{micro} micro-batches: {bubble(stages, micro):.0%} of each stage's time is waiting"
        )
        axis.set(yticks=range(stages), ylabel="stage", title=title, xticks=[])
        axis.invert_yaxis()
    axes[-1].set_xlabel("time: blue forward, green backward")
    return figure


def bytes_of_layers(run: Run, batches: tuple[int, ...] = (64, 256, 1024, 1796)) -> dict[int, Any]:
    """Of each batch: bytes that rank 0 of two sends, as tensor parallel and as data parallel."""
    found = {}
    for batch in batches:
        tensor = run(train_rank, 2, batch, 1, HIDDEN)[0][2]
        data = run(train_rank, 1, batch, 1, HIDDEN)[0][3]
        found[batch] = tensor, data
    return found


def replica_figure(step_time: Callable[..., float], sequence: int) -> Figure:
    """Time of a step over that of computing, by tokens of a GPU, for some sizes of a replica."""
    figure, axis = plt.subplots(figsize=(7.2, 2.9))
    tokens = [2 ** (7 + i / 16) for i in range(16 * 6 + 1)]
    for number, gpus in enumerate((1, 4, 8, 16, 32)):
        name = "1 (FSDP alone)" if gpus == 1 else str(gpus)
        whole = [each for each in tokens if gpus * each >= sequence]
        times = [step_time(each, gpus) for each in whole]
        axis.plot(whole, times, color=RANKS[number], lw=2, label=name)
        if gpus > 1:
            axis.plot(whole[0], times[0], "o", color=RANKS[number], ms=5)
    cut = [each for each in tokens if each <= sequence]
    times = [step_time(each, 1, s=each) for each in cut]
    axis.plot(cut, times, color=RANKS[0], lw=1.2, ls=":", label="1, sequences cut")
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks := [2**i for i in range(7, 14)], [f"{each:,}" for each in ticks])
    axis.set(xlabel="tokens on each GPU", ylabel="step / computing", ylim=(0.8, 5))
    axis.legend(title="GPUs that share a replica")
    return figure


def rows_of_layers(found: dict[int, Any]) -> list[Row]:
    rows: list[Row] = []
    for batch in (64, 1024):
        tensor, data = found[batch]
        results = 8 * ring_sent(batch * OUT, 0, 2).elements
        rows.append((f"tensor, {batch:,} rows: bytes", results, tensor))
        rows.append((f"data, {batch:,} rows: bytes", 8 * HIDDEN * (WIDTH + OUT), data))
    return rows


def rows_of_pipeline(run: Run, stages: int = 4) -> list[Row]:
    """Bytes of all stages for two batches, and the share of waiting for 2 and 8 micro-batches."""
    rows: list[Row] = []
    for batch in (64, 1024):
        sent = sum(each for _, each in run(on_a_mesh, stages, 4, batch))
        ours = 8 * elements_sent(stages, batch, 32)
        rows.append((f"pipeline, {batch:,} rows: bytes of all", ours, sent))
    for micro in (2, 8):
        traces = [trace for _, _, trace in run(run_rank, micro, 32, PAUSE)]
        name = f"pipeline, {micro} parts: share of waiting"
        rows.append((name, bubble(stages, micro), waiting(traces)))
    return rows


def table_of(rows: list[Row]) -> Table:
    def shown(what: str, value: float) -> str:
        return f"{value:.0%}" if what.endswith("waiting") else f"{value:,.0f}"

    lines = [
        (what, shown(what, ours), shown(what, seen), shown(what, seen - ours))
        for what, ours, seen in rows
    ]
    return Table(["", "predicted", "measured", "difference"], lines)
