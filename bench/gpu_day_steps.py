"""The measurements of `bench.gpu_day`: `python -m bench.gpu_day_steps STEP … --to FILE`.

A step writes FILE again after every result, so a step that is cut short loses only what it was
measuring. Without a GPU each step runs tiny models on the CPU: that tries the code, and the numbers
mean nothing.
"""

import argparse
import gc
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile, schedule
from torch.utils.benchmark import Timer

from distributed.cost import Cluster
from distributed.planner.hardware import GPUS
from distributed.planner.job import Job, Option, cluster_of, option
from distributed.planner.memory import SHARED
from distributed.planner.shapes import Model
from playground.lab.one_host import ROOT, SCRIPTS
from playground.planner.executed_cases import REDUCED_IN_FP32, Case
from playground.planner.measured_cases import SHAPES, Point, known
from recipes.copies import torch_code
from recipes.executed import Transformer, names_of, world_of

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# The programs of a curve, in the order of their worth: strategy, compiled blocks, recomputation
SERIES = (
    ("DDP", False, "none"),
    ("ZeRO-3", False, "none"),
    ("DDP", True, "none"),
    ("ZeRO-3", False, "full"),
    ("ZeRO-3", True, "none"),
    ("DDP", False, "full"),
    ("ZeRO-3", True, "full"),
    ("DDP", True, "full"),
)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ROWS_COMPILED = ROWS[::2]  # each number of rows is compiled separately
COMPILING = 25.0  # seconds that this takes the first time, roughly
# Rank 0 of N: worlds, strategies and recomputation, in the order of their worth
RANK_ZERO = (
    ("llama-2-7b", 8, "ZeRO-3", "none"),
    ("llama-2-7b", 64, "ZeRO-3", "none"),
    ("llama-2-70b", 64, "ZeRO-3", "full"),
    ("llama-2-7b", 8, "ZeRO-2", "none"),
    ("llama-2-7b", 64, "HSDP", "none"),
    ("llama-2-13b", 16, "ZeRO-3", "none"),
    ("llama-2-7b", 64, "ZeRO-3", "full"),
    ("llama-2-70b", 64, "ZeRO-3", "none"),
    ("llama-2-7b", 8, "ZeRO-3", "full"),
)
TRACE_LIMIT = 1_000_000  # bytes of a compressed trace


class Kept:
    """The results of a step in a file, and the seconds that the step may still take."""

    def __init__(self, file: Path, seconds: float):
        self.file, self.until = file, time.monotonic() + seconds
        self.found: dict[str, Any] = {}
        if CUDA:
            self.found["gpu_bytes"] = torch.cuda.mem_get_info()[1]

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def keep(self, **found: Any) -> None:
        """Add these results, and write all of them."""
        self.found |= found
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.found, indent=1) + "\n")
        fresh.replace(self.file)

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Append a row to a list of results, and say it."""
        print(json.dumps(row), flush=True)
        self.keep(**{name: [*self.found.get(name, []), row]})


def rates(kept: Kept) -> None:
    """Products of square matrices (FLOP/s by dtype and side); copies, both ways (bytes/s)."""
    torch.set_float32_matmul_precision("high")  # TF32

    def rate(work: float, statement: str, **names: Any) -> float:
        timer = Timer(statement, globals=names)
        timer.timeit(3)
        return work / timer.blocked_autorange(min_run_time=0.4 if CUDA else 0.01).median

    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        products: dict[int, float] = {}
        for n in (512, 1024, 2048, 4096, 8192, 16384) if CUDA else (32, 64):
            a, b = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in range(2))
            products[n] = rate(2 * n**3, "a @ b", a=a, b=b)
            kept.keep(flop_per_s=kept.found.get("flop_per_s", {}) | {name: products})
    here = torch.ones(2**28 if CUDA else 2**16, device=DEVICE)  # float32
    there = torch.empty_like(here)
    host = torch.ones(here.shape, pin_memory=CUDA)
    pageable = torch.ones(here.shape)
    for name, statement, size in (
        ("HBM read", "here.sum()", here.nbytes),
        ("HBM written", "here.zero_()", here.nbytes),
        ("HBM copied, read and written", "there.copy_(here)", 2 * here.nbytes),
        ("host to GPU, pinned", "there.copy_(host)", here.nbytes),
        ("GPU to host, pinned", "host.copy_(there)", here.nbytes),
        ("host to GPU, pageable", "there.copy_(pageable)", here.nbytes),
    ):
        found = rate(size, statement, here=here, there=there, host=host, pageable=pageable)
        kept.keep(bytes_per_s=kept.found.get("bytes_per_s", {}) | {name: found})


def curves(kept: Kept, model: str) -> None:
    """Peak memory and seconds of a step, by rows, strategy, compilation and recomputation."""
    join_alone()
    series = SERIES if CUDA else [*(each for each in SERIES if not each[1]), ("DDP", True, "none")]
    for strategy, compiled, checkpoint in series:
        rows = ROWS_COMPILED if compiled else ROWS
        points = [Point(model, strategy, compiled, checkpoint, n) for n in rows]
        measure_series(kept, points if CUDA else points[: 1 if compiled else 2])
    require(kept, "points", "step_s")


def require(kept: Kept, name: str, value: str) -> None:
    """Raise RuntimeError with the first failure if no row of a list has this value."""
    rows = kept.found.get(name, [])
    if not any(value in row for row in rows):
        problems = [row.get("failed", "out of memory") for row in rows] or ["no time was left"]
        raise RuntimeError(problems[0])


def measure_series(kept: Kept, points: list[Point]) -> None:
    """One model for all numbers of rows, the fewest first, until time or memory runs out."""
    torch._dynamo.reset()
    torch._dynamo.config.automatic_dynamic_shapes = False  # kernels for each shape, as in a job
    wanted = option(points[0].job, points[0].strategy, alone(), math.inf)
    step: Callable[..., object] | None = None
    run: Callable[[], object] | None
    for point in points:
        if kept.left < (COMPILING if point.compiled else 5):
            return
        row: dict[str, Any] = point._asdict() | planned(point)
        try:
            started = time.monotonic()
            if step is None:
                step = made(wanted, point.job, alone())
            run = partial(step, batch_of(point.job))
            run()  # makes the optimizer's states, and compiles
            synchronize()
            row["first_step_s"] = time.monotonic() - started
            row |= peak_of(run)
            seconds = timed(run, kept.left)
            row |= {"step_s": median(seconds), "steps_s": seconds}
        except torch.OutOfMemoryError:
            row["out_of_memory"] = True
        except Exception as error:  # of a compiler, say: the other programs may still run
            row["failed"] = f"{type(error).__name__}: {error}"[:500]
        run = None
        kept.add("points", row)
        if "step_s" not in row:
            break
    del step
    empty()


def planned(point: Point) -> dict[str, Any]:
    """The plan for this GPU as it was on that day; pages make their own, with today's planner."""
    one = this_gpu()
    if one is None:
        return {}
    return {"planned_bytes": point.planned_bytes(one), "planned_s": point.planned_seconds(one)}


def this_gpu() -> Any:
    """The planner's entry for this GPU; None if it has none."""
    if not CUDA:
        return None
    return known(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])


def alone() -> Cluster:
    return cluster_of(this_gpu() or GPUS["h100"], 1, speed=1e14)


def join_alone() -> None:
    """A process group of one rank, with the backend that a job would have."""
    os.environ["LOCAL_RANK"] = "0"
    backend = "nccl" if CUDA else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def made(plan: Option, job: Job, cluster: Cluster) -> Callable[..., object]:
    """A step of the program that *Copy as PyTorch* hands out for this plan, with its model."""
    names = names_of(torch_code(plan, job, cluster))
    make, more = partial(Transformer, job.model), {}
    if plan.name not in SHARED:  # FSDP2's is made on the meta device
        make, more = partial(made_here, job.model), {"device": DEVICE}
    model, optimizer = names["parallelize"](make, device=DEVICE)
    return lambda batch: names["train_step"](model, optimizer, batch, **more)


def made_here(model: Model) -> Transformer:
    """On the GPU: a billion random numbers take the CPU ten seconds."""
    with torch.device(DEVICE):
        return Transformer(model)


def batch_of(job: Job) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random words, in as many micro-batches as the job has. A batch of zeros computes faster."""
    shape = int(job.rows), job.context
    vocab_size, count = job.model.vocab_size, job.accumulate
    words = [torch.randint(vocab_size, shape, device=DEVICE) for _ in range(count)]
    return [(each, each.roll(-1, 1)) for each in words]


def peak_of(step: Callable[[], object]) -> dict[str, int]:
    """Bytes that a step needs at its peak: allocated, and what the allocator took for that."""
    if not CUDA:
        step()
        whole = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of this process
        return {"bytes": whole, "reserved_bytes": whole}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "outside_bytes": total - free - torch.cuda.memory_reserved(),  # CUDA's own, and others'
    }


def timed(step: Callable[[], object], left: float) -> list[float]:
    """Seconds of each of 3 to 15 steps. Nothing waits between them, as nothing does in a job."""
    started = time.perf_counter()
    step()
    synchronize()
    one = time.perf_counter() - started
    count = max(1, min(left / 2 // one, 15, max(3, 1.5 // one)))
    if not CUDA:
        marks = [time.perf_counter()]
        for _ in range(int(count)):
            step()
            marks.append(time.perf_counter())
        return [b - a for a, b in itertools.pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(int(count) + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def empty() -> None:
    """Give back what a deleted model held."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def rank_zero(kept: Kept) -> None:
    """The peak memory of rank 0 of N: real tensors on this GPU, and messages that go nowhere."""
    os.environ["LOCAL_RANK"] = "0"
    memory = torch.cuda.mem_get_info()[1] if CUDA else math.inf
    for model, gpus, strategy, checkpoint in RANK_ZERO if CUDA else RANK_ZERO[:2]:
        if kept.left < 8:
            break
        case = Case(model, gpus, strategy, REDUCED_IN_FP32, checkpoint)
        row = case._asdict() | {"code": case.digest, "planned_bytes": sum(case.held.values())}
        if row["planned_bytes"] > memory:
            row["out_of_memory"] = True
        else:
            job = case.job if CUDA else Job(SHAPES["tiny"][0], 1, 32, 1, checkpoint)
            row |= peak_of_rank_zero(case.option, job, case.cluster)
        kept.add("ranks", row)
    require(kept, "ranks", "bytes")


def peak_of_rank_zero(plan: Option, job: Job, cluster: Cluster) -> dict[str, Any]:
    """As `executed.execute`, but on a device: bytes at the peak of the second step."""
    try:
        with world_of(cluster.ranks):
            run = partial(made(plan, job, cluster), batch_of(job))
            run()
            found: dict[str, Any] = dict(peak_of(run))
            del run
    except torch.OutOfMemoryError:
        found = {"out_of_memory": True}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:500]}
    empty()
    return found


def traces(kept: Kept, folder: str) -> None:
    """A step under DDP and one under FSDP2, by PyTorch's profiler, as files in `folder`."""
    join_alone()
    model, rows = ("gpt-2-124m", 16) if CUDA else ("tiny", 2)
    for strategy, name in (("ZeRO-3", "fsdp2"), ("DDP", "ddp")):
        point = Point(model, strategy, False, "none", rows)
        step = made(option(point.job, strategy, alone(), math.inf), point.job, alone())
        batch = batch_of(point.job)
        for _ in range(2):
            step(batch)
        path = Path(folder, f"gpu-day-{name}.json.gz")
        with profile(
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda seen, path=path: seen.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(2):
                step(batch)
                synchronize()
                profiler.step()
        size = path.stat().st_size
        kept.add("traces", point._asdict() | {"file": path.name, "file_bytes": size})
        if size > TRACE_LIMIT:
            path.unlink()
            raise ValueError(
                f"{path.name} has {size:,} bytes, and at most {TRACE_LIMIT:,} are kept"
            )
        del step
        empty()


SMALL = ["--vocab=256", "--context=64", "--width=64", "--layers=2", "--heads=2"]
SMALL += ["--batch=16", "--micro=4"]


def train_script(kept: Kept) -> None:
    """code/scripts/train.py on tokens of this book's own text: what its log says, until time ends.

    Two thirds of the time are for compiled blocks, whose first step takes longest.
    """
    work = kept.file.parent / "train"
    texts = sorted(str(path) for part in ("book", "code") for path in (ROOT / part).rglob("*.md"))
    texts += sorted(str(path) for path in (ROOT / "code").rglob("*.py"))
    make = [sys.executable, str(SCRIPTS / "make_tokens.py"), *texts, str(work / "data")]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    point = Point("gpt-2-124m", "ZeRO-3", False, "none", 16, accumulate=4)
    size = ["--batch", str(point.rows * point.accumulate), "--micro", str(point.rows)]
    for compiled, until in ((False, kept.left * 2 / 3), (True, 0)):
        words = [str(work / "data"), str(work / f"run-{compiled}"), *(size if CUDA else SMALL)]
        words += ["--steps=1000000", "--log-every=5", "--eval-every=1000000"]
        words += ["--save-every=1000000", *(["--compile"] if compiled else [])]
        row = point._replace(compiled=compiled)._asdict() | planned(point)
        log = Path(words[1], "log.jsonl")
        found: list[dict[str, Any]] = []
        with subprocess.Popen([sys.executable, str(SCRIPTS / "train.py"), *words]) as process:
            while kept.left > until + 3 and len(found) < 12 and process.poll() is None:
                time.sleep(0.5)
                found = records(log)
            process.send_signal(signal.SIGKILL)  # SIGTERM would save first
        if not found:
            said = f"ended with status {process.returncode}" if process.returncode > 0 else "no log"
            kept.keep(problem=f"train.py{' --compile' * compiled}: {said}")
            continue
        rate = median(record["tokens_per_s"] for record in found[1:] or found)
        row |= {name: found[-1].get(name) for name in ("step", "loss", "mfu", "peak_gib")}
        kept.add("runs", row | {"tokens_per_s": rate, "logged": len(found)})
    if not kept.found.get("runs"):
        raise RuntimeError(kept.found["problem"])


def records(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, of those that report steps."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [record for record in map(json.loads, lines) if "tokens_per_s" in record]


STEPS: dict[str, Callable[..., None]]
STEPS = {each.__name__: each for each in (rates, curves, rank_zero, traces, train_script)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_day_steps", description=__doc__)
    parser.add_argument("step", choices=STEPS, help="name of the measurement")
    parser.add_argument("words", nargs="*", help="arguments of the measurement")
    parser.add_argument("--to", type=Path, required=True, help="JSON file for the results")
    parser.add_argument(
        "--seconds", type=float, default=600, help="time limit, in seconds (default: 600)"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    kept = Kept(given.to, given.seconds)
    STEPS[given.step](kept, *given.words)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
