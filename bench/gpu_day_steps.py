"""What each step of `bench.gpu_day` measures: `python -m bench.gpu_day_steps train --to FILE …`.

Each writes what it found as JSON. Without a GPU it does the same in small, on the CPU: that tries
the step, and measures nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import profile
from torch.utils.benchmark import Timer

from distributed import Group, launch
from distributed.blockwise_weights import check_blocks
from distributed.instruments.stages import CLASSES
from distributed.model_states import RECIPES, Recipe
from distributed.planner.hardware import GPUS, Gpu, gpu
from distributed.planner.job import Job, cluster_of, option
from distributed.planner.shapes import PRESETS, Model, gpt
from distributed.planner.speed import achieved, measure
from distributed.strategy import run_of
from distributed.workbench.measure import seconds
from distributed.workbench.memory_meter import peak_of_step
from distributed.workbench.transformer import Config, make_model
from playground.lab.one_host import SCRIPTS, as_module

CUDA = torch.cuda.is_available()
SMALL = gpt(layers=2, d=64, heads=4, words=96, positions=32)
# How to train: the plan's name for it, and its bytes for each parameter. FSDP2 keeps fp32 shards,
# and reduces in fp32.
WAYS = {
    "plain": ("DDP", Recipe(2, 2, 0, 4)),  # all of it in bf16, on one device
    "fsdp2": ("ZeRO-3", RECIPES["the same, gradients in fp32"]),
    **{f"zero{s}": (f"ZeRO-{s}", RECIPES["bf16, Adam in fp32, fp32 master copy"]) for s in CLASSES},
}


def rates() -> dict[str, Any]:
    """Products of square matrices (FLOP/s by dtype and side), and memory (bytes/s, both ways)."""
    device = "cuda" if CUDA else "cpu"

    def rate(work: float, statement: str, **names: Any) -> float:
        timer = Timer(statement, globals=names)
        timer.timeit(3)
        return work / timer.blocked_autorange(min_run_time=0.5 if CUDA else 0.01).median

    products: dict[str, dict[int, float]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        of_dtype = products[str(dtype).removeprefix("torch.")] = {}
        for n in (1024, 2048, 4096, 8192, 16384) if CUDA else (32, 64):
            a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            of_dtype[n] = rate(2 * n**3, "a @ b", a=a, b=b)
    x = torch.ones(2**30 if CUDA else 2**16, device=device)  # float32
    memory = {
        "read": rate(x.nbytes, "x.sum()", x=x),
        "written": rate(x.nbytes, "x.zero_()", x=x),
        "copied": rate(2 * x.nbytes, "y.copy_(x)", x=x, y=torch.empty_like(x)),
    }
    return {"flop_per_s": products, "bytes_per_s": memory}


def known(name: str, memory: float) -> Gpu | None:
    """The GPU in the book's table that CUDA calls so; of several sizes, the nearest in memory."""
    words = name.upper()
    same = [
        one
        for key, one in GPUS.items()
        if key.split("-")[0].upper() in words and ("PCIE" in words) == ("pcie" in key)
    ]
    return min(same, key=lambda one: abs(one.memory - memory), default=None)


def train(model: str, way: str) -> dict[str, Any]:
    """Peak memory (bytes) and tokens/s of a step, and what the plan says of both.

    The allocator knows nothing of the plan's allowance, which is for CUDA's own and for gaps.
    """
    spec, ranks = PRESETS[model] if CUDA else SMALL, max(1, torch.cuda.device_count())
    rows, context = (4, spec.positions or 2048) if CUDA else (2, spec.positions)
    name, recipe = WAYS[way]
    given: dict[str, Any] = {"device": "auto" if CUDA else "cpu", "timeout": None}
    found = launch(train_on_rank, spec, way, rows, context, ranks=ranks, **given)
    peak, taken = max(peak for peak, _ in found), median(found[0][1])

    memory = torch.cuda.mem_get_info()[1] if CUDA else float("inf")
    one = known(torch.cuda.get_device_name(), memory) if CUDA else None
    size = (1024, 512, 2) if CUDA else (64, 32, 2)
    speed = achieved(one, spec, rows * context) if one else measure(*size)
    job = Job(spec, rows, context, checkpoint="none", recipe=recipe)
    planned = option(job, name, cluster_of(one or gpu("h100"), ranks, ranks, speed=speed), memory)
    return {
        "ranks": ranks,
        "rows": rows,
        "context": context,
        "measured": {"bytes": peak, "tokens_per_s": ranks * rows * context / taken},
        "step_s": found[0][1],
        "predicted": {
            "bytes": planned.needs - planned.memory["allowance"],
            "tokens_per_s": run_of(planned, ranks, 1).tokens_per_second,
        },
        "predicted_bytes": planned.memory,
        "speed": speed,
        "speed_of": one.name if one else "one layer, measured here",
    }


def train_on_rank(
    group: Group, spec: Model, way: str, rows: int, context: int
) -> tuple[int, list[float]]:
    """Bytes at the peak of a step, and how long each step took (s)."""

    make = partial(make_step, group, spec, way, rows, context)
    if group.device.type == "cpu":
        return peak_of_step(make), seconds(group, make(), times=3)
    step = make()
    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats(group.device)
    taken = seconds(group, step, times=15)
    return torch.cuda.max_memory_allocated(group.device), taken


def make_step(group: Group, spec: Model, way: str, rows: int, context: int) -> Callable[[], None]:
    """One step of a GPT of that shape on numbers that mean nothing, trained that way."""
    config = Config(spec.words, context, spec.d, spec.layers, spec.heads)
    with torch.device(group.device):
        model: nn.Module = make_model(config)
        batch = torch.randint(spec.words, (rows, context + 1))
    optimizer: Any
    if way.startswith("zero"):
        stage = CLASSES[int(way[-1])]
        optimizer = stage(model, torch.optim.AdamW, group, param_dtype=torch.bfloat16, lr=1e-4)
    elif way == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh(group.device.type, (group.size,))
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*check_blocks(model, None), model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        logits = model(batch[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def trace(model: str, file: str) -> dict[str, Any]:
    """A step under FSDP2 in PyTorch's profiler, to `file`; the operators that take most (µs)."""
    spec, ranks = PRESETS[model] if CUDA else SMALL, max(1, torch.cuda.device_count())
    given: dict[str, Any] = {"device": "auto" if CUDA else "cpu", "timeout": None}
    return launch(trace_on_rank, spec, file, ranks=ranks, **given)[0]


def trace_on_rank(group: Group, spec: Model, file: str) -> dict[str, Any]:
    step = make_step(group, spec, "fsdp2", rows=4, context=spec.positions)
    for _ in range(3):
        step()
    with profile() as seen:  # of all that is here
        step()
        if CUDA:
            torch.cuda.synchronize()
    if group.rank:
        return {}
    seen.export_chrome_trace(file)
    kind = "self_device_time_total" if CUDA else "self_cpu_time_total"
    most = sorted(seen.key_averages(), key=lambda each: -getattr(each, kind))[:15]
    return {"file": Path(file).name, "us": {each.key: getattr(each, kind) for each in most}}


def script(name: str, folder: str) -> dict[str, Any]:
    """A script of the ladder to its end, as torchrun starts it: losses, seconds, peak memory."""
    sys.path.insert(0, str(SCRIPTS))
    module: Any = as_module(SCRIPTS / f"{name}.py")
    if not CUDA:
        module.EPOCHS = 1
    started = time.perf_counter()
    losses = module.main(*[folder] * (name in ("fsdp", "compiled")))
    found = {
        "ranks": int(os.environ.get("WORLD_SIZE", 1)),
        "steps": len(losses),
        "losses": losses,
        "main_s": time.perf_counter() - started,
        "bytes": torch.cuda.max_memory_allocated() if CUDA else None,
    }
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


STEPS: dict[str, Callable[..., dict[str, Any]]]
STEPS = {each.__name__: each for each in (rates, train, trace, script)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_day_steps", description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("words", nargs="*", help="what the step is called with")
    parser.add_argument("--to", type=Path, required=True, help="the JSON that is written")
    given = parser.parse_args()
    found = STEPS[given.step](*given.words)
    if os.environ.get("RANK", "0") == "0":
        given.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
