"""A predicted step as a drawing, and predictions beside what was measured: *What a step costs*."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from distributed.cost import all_reduce, step_ddp
from distributed.planner.shapes import LOGARITHM, gpt
from distributed.workbench.memory_meter import MemoryUse
from distributed.workbench.transformer import Config, make_model
from playground.show.bucket_sizes import read
from playground.show.clusters import FAST
from playground.show.colours import KINDS
from playground.show.recorded import stamp
from playground.show.tables import Table

Measured = tuple[Config, int, float, int]  # with rows; bytes predicted and measured
Timed = tuple[str, str, float, float]  # link, buckets; seconds predicted and measured


def two_lanes() -> Figure:
    """The page's step: computation above, buckets below, 70 of the 560 in each block."""
    cluster = FAST._replace(ranks=64)
    sizes, together = [25e6] * 560, 70
    step = step_ddp(cluster, 6 * 7e9 * 2048, sizes)
    figure, axis = plt.subplots(figsize=(7.2, 1.7))
    forward, end, block_begin = step.compute / 3, 0.0, 0.0
    for left, width, name in ((0.0, forward, "forward"), (forward, 2 * forward, "backward")):
        axis.barh(0, width * 1e3, left=left * 1e3, color=KINDS["compute"], edgecolor="white")
        axis.text((left + width / 2) * 1e3, 0, name, ha="center", va="center", color="black")
    for i, size in enumerate(sizes):
        begin = max(end, forward * (1 + 2 * (i + 1) / len(sizes)))
        block_begin = begin if i % together == 0 else block_begin
        end = begin + all_reduce(cluster, size)
        if (i + 1) % together == 0:
            left, width = block_begin * 1e3, (end - block_begin) * 1e3
            axis.barh(1, width, left=left, color=KINDS["communication"], edgecolor="white")
    assert abs(end - step.total) < 1e-9
    axis.set(yticks=[0, 1], yticklabels=["compute", "all-reduce"], xlabel="time (ms)")
    axis.invert_yaxis()
    return figure


def left_by_forward(model: Any, characters: torch.Tensor) -> int:
    """Bytes of activations that are alive at the end of a forward pass."""
    with MemoryUse(lambda: {"parameters": model.parameters()}) as use:
        loss = model.loss(characters)
        measured = use.now()["activations"]
    del loss
    return measured


def measure_activations() -> list[Measured]:
    """Three transformers: bytes that the forward pass leaves, by the formula and counted."""
    found = []
    for layers, d, heads, t, batch in ((2, 64, 4, 32, 8), (4, 128, 4, 64, 4), (6, 128, 8, 64, 2)):
        config = Config(v=96, t=t, d=d, layers=layers, heads=heads)
        characters = torch.randint(config.v, (batch, t + 1))
        measured = left_by_forward(make_model(config), characters)
        shape = gpt(layers, d, heads, config.v, t)
        expected = shape.activations(batch * t, size=4, scores=LOGARITHM)
        found.append((config, batch, expected, measured))
    return found


def activations_table(found: list[Measured]) -> Table:
    rows = [
        (
            f"{config.layers} × {config.d}",
            batch,
            f"{ours:,.0f}",
            f"{seen:,}",
            f"{seen - ours:,.0f}",
        )
        for config, batch, ours, seen in found
    ]
    return Table(["layers × width", "rows", "bytes, predicted", "measured", "difference"], rows)


def recorded_steps(step_seconds: Callable[[float, list[float]], float]) -> list[Timed]:
    """The laboratory's steps with buckets of seven sizes, and what `step_seconds` says of them."""
    swept, found = read(), []
    for link, name in (("100Mbit", "100 Mbit/s"), ("1000Mbit", "1,000 Mbit/s")):
        run = swept[link]
        for row in run["steps"]:
            count = round(swept["bytes"] / row["bucket"])
            messages = [run["alpha"] + run["beta"] * swept["bytes"] / count] * count
            found.append(
                (name, str(count), step_seconds(run["computed"], messages), row["seconds"])
            )
    return found


def steps_table(steps: list[Timed]) -> Table:
    rows = [
        (link, count, f"{1e3 * ours:.0f} ms", f"{1e3 * seen:.0f} ms", f"{seen / ours - 1:+.0%}")
        for link, count, ours, seen in steps
    ]
    header = ["links", "buckets", "predicted", "measured", "difference"]
    return Table(header, rows, stamp(read()))
