"""Small Chrome traces of public ones, for the tests of `distributed.read_trace` and for the page.

    python -m bench.reduce_traces FOLDER

FOLDER has `tests/data` of HolisticTraceAnalysis at the commit below. Two more are made here, of
jobs on two CPU ranks that are slow for a planted reason. Each file keeps the intervals that the
reader looks at, in a few steps: kernels by stream with the name of what ran (without its types),
when each was launched, waits for the loader and for the GPU, collectives with their sizes, when
gradients were complete, when a backward pass began, and whether FSDP is used. Shapes, stacks, hosts
and users are left out.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from distributed.read_trace.__main__ import read_file
from distributed.read_trace.families import short
from distributed.read_trace.rank_trace import RankTrace

SOURCE = "https://github.com/facebookresearch/HolisticTraceAnalysis"
COMMIT = "f4d0062c382f42bd8a74838bcdad1916c7d5d2da"
LICENCE = "MIT, Copyright (c) Meta Platforms, Inc. and affiliates"
ROOT = Path(__file__).parents[1]
OUT = ROOT / "book/_static/traces"
MOST = 100_000  # bytes of a file
JOB = "tests/distributed/slow_job.py"
REASONS = ("rank", "loader")  # of those that the job can be slow for


class Public(NamedTuple):
    """A public trace: its path, what it is of, and how many of its steps are kept from which on."""

    path: str
    about: str
    first: int
    steps: int


TRACES = {
    "resnet-2-a100": Public(
        "nccl_parser_config/nccl_data.json.gz", "a ResNet under DDP on 2 A100s, rank 0", 0, 2
    ),
    "small-messages-2-v100": Public(
        "df_index_resolver/df_index_resolver.json.gz", "DDP on 2 V100s, rank 1", 1, 1
    ),
    "resnet-1-v100": Public(
        "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "a ResNet on one V100",
        1,
        3,
    ),
    "recommender-8-a100": Public(
        "trace_diff/control/control.json.gz", "a recommender on 8 A100s, rank 3", 1, 2
    ),
    "recommender-128-rank-0": Public(
        "trace_filter/sampled_rank-0.json.gz", "a recommender on 128 GPUs, sampled, rank 0", 0, 2
    ),
    "recommender-128-rank-1": Public(
        "trace_filter/sampled_rank-1.json.gz", "a recommender on 128 GPUs, sampled, rank 1", 0, 2
    ),
}


def reduced(trace: RankTrace, first: int, steps: int) -> list[dict[str, Any]]:
    """The events that are kept, on a clock that begins with the first step."""
    kept = trace.steps[first : first + steps]
    begin, end = kept[0].start, kept[-1].end
    collectives = {(c.start, c.end): c for c in trace.collectives}
    backward = [[b for b in trace.backward if s.start <= b < s.end][:1] for s in kept]

    def event(category: str, name: str, a: float, b: float, **args: Any) -> dict[str, Any]:
        there: dict[str, Any] = {"ph": "X", "cat": category, "name": name}
        there |= {"ts": round(a - begin, 2), "dur": round(b - a, 2)}
        return there | ({"args": args} if args else {})

    events = [event("user_annotation", f"ProfilerStep#{s.number}", s.start, s.end) for s in kept]
    for kernel in trace.kernels:
        asked = trace.launched.get(kernel.correlation, kernel.start)
        if not begin <= asked < end:
            continue
        args: dict[str, Any] = {"stream": kernel.stream, "correlation": kernel.correlation}
        call = collectives.get((kernel.start, kernel.end))
        if call and call.bytes:
            args |= {"In msg nelems": call.bytes, "dtype": "Byte", "Group size": call.members}
        category = "gpu_memcpy" if kernel.kind == "copy" else "kernel"
        events.append(event(category, short(kernel.name), kernel.start, kernel.end, **args))
        if kernel.correlation in trace.launched:
            args = {"correlation": kernel.correlation}
            events.append(event("cuda_runtime", "cudaLaunchKernel", asked, asked, **args))
    lists = {
        ("cpu_op", "operators"): [] if trace.is_gpu else trace.busy("compute"),
        ("user_annotation", "enumerate(DataLoader)"): trace.loading,
        ("cuda_runtime", "cudaStreamSynchronize"): trace.synchronizing,
        ("user_annotation", "nccl:"): trace.asking,
        ("cpu_op", "torch::autograd::AccumulateGrad"): [(g, g) for g in trace.gradients],
        ("cpu_op", "the first Backward"): [(b, b) for first in backward for b in first],
        ("user_annotation", "FSDP::"): [(begin, begin)] if trace.sharded else [],
    }
    if not trace.is_gpu:
        for call in trace.collectives:
            name = f"gloo:{call.kind.replace('-', '_')}"
            lists.setdefault(("user_annotation", name), []).append(call[:2])
    for (category, name), stretches in lists.items():
        events += [event(category, name, a, b) for a, b in stretches if begin <= a < end]
    return events


def write(name: str, path: Path, public: Public, source: str, licence: str) -> None:
    """One small trace. Raises ValueError if it would be too large."""
    trace = read_file(path)
    correlations = {c: i + 1 for i, c in enumerate(sorted({k.correlation for k in trace.kernels}))}
    trace.kernels = [k._replace(correlation=correlations[k.correlation]) for k in trace.kernels]
    trace.launched = {correlations[c]: t for c, t in trace.launched.items() if c in correlations}
    whole = {
        "about": public.about,
        "source": source,
        "licence": licence,
        "deviceProperties": [{"name": trace.device}],
        "distributedInfo": {
            "backend": trace.backend, "rank": max(0, trace.rank), "world_size": trace.ranks or 1,
        },
        "traceEvents": reduced(trace, public.first, public.steps),
    }  # fmt: skip
    packed = gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), 9, mtime=0)
    if len(packed) > MOST:
        raise ValueError(f"{name} has {len(packed):,} bytes, more than {MOST:,}: keep fewer steps")
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json.gz").write_bytes(packed)
    print(f"{name}: {len(whole['traceEvents']):,} events, {len(packed):,} bytes")


def write_ours(reason: str) -> None:
    """Run our job, and keep the traces of both ranks."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        torchrun += ["--nproc-per-node=2", str(ROOT / JOB), reason, folder]
        subprocess.run([sys.executable, *torchrun], check=True, capture_output=True)
        for rank in range(2):
            about = Public("", f"DDP on two CPU ranks with a slow {reason}, rank {rank}", 0, 4)
            name, path = f"slow-{reason}-{rank}", Path(folder, f"{rank}.json.gz")
            write(name, path, about, JOB, "MIT, as this book")


def main() -> None:
    for name, public in TRACES.items():
        source = f"{SOURCE}/blob/{COMMIT}/tests/data/{public.path}"
        write(name, Path(sys.argv[1], "tests/data", public.path), public, source, LICENCE)
    for reason in REASONS:
        write_ours(reason)


if __name__ == "__main__":
    main()
