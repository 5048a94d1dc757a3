"""Bytes that a split network sends, and idle time of a pipeline, next to the formulas."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distributed.all_reduce import ring_sent
from distributed.pipeline_parallel import (
    bubble,
    elements_sent,
    on_a_mesh,
    run_rank,
    waiting,
)
from distributed.tensor_parallel import train_rank
from playground.show.colours import QUIET, RANKS
from playground.show.tables import Table

HIDDEN, WIDTH, OUT = 128, 64, 10  # the network of the first chapter: x[b, d] → h[b, f] → y[b, o]
PAUSE = 0.03  # s, that a stage of the pipeline waits as if it computed
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


def columns_then_rows(ranks: int = 2) -> Figure:
    """The two matrices of a pair, cut by columns and by rows, and what each rank has between."""
    figure, axis = plt.subplots(figsize=(7.2, 2.0), layout="constrained")
    tall, wide, narrow, gap = 1.6, 2.4, 0.9, 0.85

    def draw(left: float, height: float, width: float, cut: str, name: str, below: str) -> None:
        for rank in range(ranks):
            x, y, w, h = left, (tall - height) / 2, width, height
            if cut == "columns":
                x, w = left + rank * width / ranks, width / ranks
            elif cut == "rows":
                y, h = y + (ranks - 1 - rank) * height / ranks, height / ranks
            color = RANKS[rank] if cut else QUIET
            axis.add_patch(Rectangle((x, y), w, h, facecolor=color, edgecolor="white", lw=2))
        axis.text(left + width / 2, tall + 0.35, name, ha="center", va="bottom")
        axis.text(left + width / 2, -0.35, below, ha="center", va="top", fontsize=9)

    def sign(left: float, text: str) -> None:
        axis.text(left - gap / 2, tall / 2, text, ha="center", va="center", fontsize=13)

    left = 0.0
    draw(left, 1.0, narrow, "", "x[b, d]", "all of it,\non every rank")
    sign(left := left + narrow + gap, "·")
    draw(left, tall, wide, "columns", "W0[d, f]", "by columns")
    sign(left := left + wide + gap, "→")
    draw(left, 1.0, wide, "columns", "h[b, f]", "complete:\nno message")
    sign(left := left + wide + gap, "·")
    draw(left, tall, narrow, "rows", "W1[f, o]", "by rows")
    for rank in range(ranks):
        sign(left := left + narrow + gap, "+" if rank else "→")
        axis.add_patch(
            Rectangle(
                (left, 0.3), narrow, 1.0, facecolor="none", edgecolor=RANKS[rank], hatch="////"
            )
        )
    middle = left - gap / 2 - (ranks - 2) * (narrow + gap) / 2
    axis.text(middle, tall + 0.35, "y[b, o]", ha="center", va="bottom")
    axis.text(middle, -0.35, "partial sums:\nall-reduce", ha="center", va="top", fontsize=9)
    axis.set(xlim=(-0.2, left + narrow + 0.2), ylim=(-1.15, tall + 0.75))
    axis.axis("off")
    return figure


def bytes_of_layers(run: Run, batches: tuple[int, ...] = (64, 1024)) -> list[Row]:
    """Bytes that rank 0 of two sends, as tensor parallel and as data parallel."""
    rows: list[Row] = []
    for batch in batches:
        tensor = run(train_rank, 2, batch, 1, HIDDEN)[0][2]
        data = run(train_rank, 1, batch, 1, HIDDEN)[0][3]
        results = 8 * ring_sent(batch * OUT, 0, 2).elements
        rows.append((f"tensor, {batch:,} rows", results, tensor))
        rows.append((f"data, {batch:,} rows", 8 * HIDDEN * (WIDTH + OUT), data))
    return rows


def bytes_of_pipeline(run: Run, stages: int = 4) -> list[Row]:
    """Bytes that all stages send, for two batches."""
    rows: list[Row] = []
    for batch in (64, 1024):
        sent = sum(each for _, each in run(on_a_mesh, stages, 4, batch))
        rows.append((f"pipeline, {batch:,} rows", 8 * elements_sent(stages, batch, 32), sent))
    return rows


def waiting_in_pipeline(run: Run, stages: int = 4) -> list[Row]:
    """Share of the time in which stages wait, with 2 and 8 micro-batches.

    It is the least of three tries, because other programs can only add to it.
    """
    rows: list[Row] = []
    for micro in (2, 8):
        tries = [[trace for _, _, trace in run(run_rank, micro, 32, PAUSE)] for _ in range(3)]
        name = f"{stages} stages, {micro} micro-batches: share of waiting"
        rows.append((name, bubble(stages, micro), min(map(waiting, tries))))
    return rows


def table_of_shares(rows: list[Row]) -> Table:
    """Shares of a step, and how many points the measured one is above the predicted one."""
    lines = [
        (what, f"{ours:.1%}", f"{seen:.1%}", f"{100 * (seen - ours):+.1f}")
        for what, ours, seen in rows
    ]
    return Table(["", "predicted", "measured", "difference (points)"], lines)
