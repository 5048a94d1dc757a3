"""Measurements of `bench.gpu_day` on a GPU, for the pages; None for those not recorded.

Plans are made here, so a page always shows how well today's planner matches the measurements.
"""

from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import Markdown
from matplotlib.figure import Figure

from distributed.planner.hardware import Gpu
from playground.planner.measured_cases import SHAPES, known, point_of, recorded
from playground.show.colours import GREY, RANKS
from playground.show.recorded import stamp
from playground.show.tables import Table

WAYS = {"DDP": "DDP", "ZeRO-3": "FSDP2"}  # the planner's name → PyTorch's
GB, TFLOP = 1e9, 1e12


PROGRAMS = """**On one GPU.** The planner's own programs, run on one {gpu}: GPT-2 with 124 million
parameters and four layers of Llama 2 7B, under DDP and FSDP2 on a single rank, with more and more
rows in a micro-batch. Points are measured, and the gray line is what the planner expects of eager
PyTorch. The table has the largest micro-batch that fitted."""
RATES = "For comparison, this is what the same GPU reaches in large matrix products and copies:"
RUN = (
    "On one GPU, training GPT-2 with 16 sequences per micro-batch and four micro-batches per step:"
)


def on_one_gpu() -> list[Any]:
    """All of the curves and rates, with the words around them; empty if none are recorded."""
    figures, memory, rates = speed_figures(), memory_table(), rates_table()
    if not figures:
        return []
    gpu = recorded(f"curves/{curves()[0]['model']}")["env"]["gpu"]
    parts = [Markdown(PROGRAMS.format(gpu=gpu)), *figures, memory]
    return parts + ([Markdown(RATES), rates] if rates else [])


def one_run() -> list[Any]:
    """What train.py logged, with a sentence; empty if it isn't recorded."""
    table = train_table()
    return [Markdown(RUN), table] if table else []


def last_test_run() -> list[Any]:
    """A sentence about the last run of tests/gpu; empty if it isn't recorded."""
    counts = test_counts()
    return [Markdown(f"The last recorded run of `make test-gpu`: {counts}.")] if counts else []


def curves() -> list[dict[str, Any]]:
    """The points of all models, in the order in which they were measured."""
    return [row for name in SHAPES for row in recorded(f"curves/{name}").get("points", [])]


def gpu_of(step: str) -> Gpu | None:
    """The planner's entry for the GPU that ran this step."""
    found = recorded(step)
    return known(found["env"]["gpu"] or "", found.get("gpu_bytes", 0)) if found else None


def speed_figures() -> list[Figure]:
    """For each model, the share of peak over tokens of a micro-batch: measured, and planned."""
    rows = [row for row in curves() if "step_s" in row and row["checkpoint"] == "none"]
    figures = []
    for model in SHAPES:
        one, measured = gpu_of(f"curves/{model}"), [row for row in rows if row["model"] == model]
        if one and measured:
            figure, axis = plt.subplots(figsize=(3.4, 3.0))
            draw_speed(axis, measured, one)
            plt.close(figure)  # else the cell would show it a second time, at its end
            figures.append(figure)
    return figures


def draw_speed(axis: plt.Axes, rows: list[dict[str, Any]], one: Gpu) -> None:
    """One model: the planner's curve as a line, and each way to run it as points."""
    points = sorted({point_of(row) for row in rows}, key=lambda point: point.tokens)
    plain = [point for point in points if point.strategy == "DDP" and not point.compiled]
    planned = [point.flops / point.planned_seconds(one) / one.peak for point in plain]
    axis.plot([point.tokens for point in plain], planned, color=GREY, label="planned")
    for number, (strategy, way) in enumerate(WAYS.items()):
        for compiled, marker in ((False, "o"), (True, "^")):
            these = [r for r in rows if (r["strategy"], r["compiled"]) == (strategy, compiled)]
            share = [point_of(row).flops / row["step_s"] / one.peak for row in these]
            label = f"{way}, {'compiled blocks' if compiled else 'eager'}"
            tokens = [point_of(row).tokens for row in these]
            axis.plot(tokens, share, marker, color=RANKS[number], label=label)
    ticks = sorted({point.tokens for point in points})[::2]
    axis.set(title=rows[0]["model"], xlabel="tokens in a micro-batch", xscale="log", ylim=0)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axis.set_xticks([], minor=True)
    axis.tick_params("x", labelsize=9)
    axis.set_ylabel(f"share of {one.peak / TFLOP:,.0f} TFLOP/s")
    axis.legend(fontsize=8)


def memory_table() -> Table | None:
    """Planned and measured peak of the largest micro-batch that fitted, a row per eager program."""
    rows = [row for row in curves() if "bytes" in row and "step_s" in row]
    one = gpu_of(f"curves/{rows[0]['model']}") if rows else None
    if one is None:
        return None
    largest = {point_of(row)._replace(rows=0): row for row in rows}  # rows grow within a program
    lines, errors = [], []
    for row in largest.values():
        point = point_of(row)
        planned = point.planned_bytes(one)
        errors.append(planned / row["bytes"] - 1)
        again = "recomputed" if point.checkpoint == "full" else "kept"
        sizes = (f"{size / GB:.1f} GB" for size in (planned, row["bytes"], row["reserved_bytes"]))
        if not point.compiled:
            name = f"{point.model}, {WAYS[point.strategy]}", again
            lines.append((*name, point.rows, *sizes, f"{errors[-1]:+.0%}"))
    note = (
        "A plan adds an allowance for the allocator and CUDA, which isn't in the planned number. "
        f"Half of all {len(errors)} programs, compiled ones included, are within "
        f"{median(map(abs, errors)):.0%}. {stamp(recorded('curves/' + rows[0]['model']))}"
    )
    header = ["on one GPU", "activations", "rows", "planned", "allocated", "reserved", "difference"]
    return Table(header, lines, note)


def rates_table() -> Table | None:
    """What products of large matrices and copies reach, beside the data sheet."""
    found, one = recorded("rates"), gpu_of("rates")
    if "bytes_per_s" not in found or one is None:
        return None
    products = {name: best(rates) for name, rates in found["flop_per_s"].items()}
    lines = [
        (f"products of matrices in {name}, {side} × {side}", f"{rate / TFLOP:,.0f} TFLOP/s")
        for name, (side, rate) in products.items()
    ]
    lines += [(name, f"{rate / GB:,.0f} GB/s") for name, rate in found["bytes_per_s"].items()]
    note = f"{one.name}: {one.peak / TFLOP:,.0f} TFLOP/s in bf16 at its peak. {stamp(found)}"
    return Table(["", "measured"], lines, note)


def best(rates: dict[str, float]) -> tuple[str, float]:
    """The fastest size, and its rate."""
    return max(rates.items(), key=lambda item: item[1])


def train_table() -> Table | None:
    """Tokens/s and MFU as train.py logs them, beside the plan."""
    found, one = recorded("train_script"), gpu_of("train_script")
    if not found.get("runs") or one is None:
        return None
    lines = []
    for row in found["runs"]:
        point = point_of(row)
        planned = point.tokens * point.accumulate / point.planned_seconds(one)
        how = "--compile" if point.compiled else "as it is"
        mfu = f"{row['mfu']:.0%}" if row["mfu"] else ""
        rates = (f"{rate:,.0f}" for rate in (planned, row["tokens_per_s"]))
        lines.append((how, *rates, f"{planned / row['tokens_per_s'] - 1:+.0%}", mfu))
    header = ["train.py, GPT-2 124M", "tokens/s, planned", "measured", "difference", "MFU"]
    return Table(header, lines, stamp(found))


def test_counts() -> str | None:
    """The last run of tests/gpu: how many passed, and where."""
    found = recorded("tests")
    if "passed" not in found:
        return None
    counts = f"{found['passed']} tests passed, {found['failed']} failed, {found['skipped']} skipped"
    return f"{counts} on {found['gpus']} × {stamp(found)}"
