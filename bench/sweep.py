"""`python -m bench.sweep [--quick] [--record]`: collectives by messages, over sizes and ranks.

The ways to do one collective take turns, the backend's own among them. With `--record` the times
go to `bench/recorded/sweep.json`, from where the page takes them.
"""

import argparse
import json
import statistics
from functools import partial
from typing import Any

import torch

from bench.pairs import ROOT
from distributed import Group, world
from distributed.collectives import SENT
from distributed.instruments.algorithms import ALGORITHMS
from distributed.instruments.collective_times import OPS
from distributed.runtime.caller import World
from distributed.runtime.script import to_bytes
from distributed.workbench.measure import buffers, seconds
from playground.environment import environment

SIZES = ["4KB", "256KB", "4MB", "64MB"]  # with 4 ranks
FEW_SIZES = ["4KB", "4MB"]  # with 1, 2, 3, 6 and 8
RANKS = [1, 2, 3, 4, 6, 8]
WAYS = {("all_reduce", name) for name in ALGORITHMS} | {*SENT}  # by messages
WAYS |= {(op, "backend") for op in OPS}


def measure(quick: bool = False) -> dict[str, Any]:
    """The stamp, and a row for each collective, algorithm, size and number of ranks."""
    rows: list[dict[str, Any]] = []
    for ranks in RANKS:
        with world(ranks, device="cpu") as run:
            for size in SIZES if ranks == 4 else FEW_SIZES:
                for op in OPS:
                    rows += in_turns(run, op, to_bytes(size), ranks, quick)
    return {"env": environment(), "rows": rows}


def in_turns(run: World, op: str, size: int, ranks: int, quick: bool) -> list[dict[str, Any]]:
    """A row for each way to do `op`: the median, the fastest and the slowest time (s)."""
    n = max(1, size // 4 // ranks) * ranks  # numbers of float32: as many parts as ranks
    times = 3 if quick else 11 if size > 1_000_000 else 41
    taken = run(time_all, op, n, times, timeout=None)[0]
    for name, of_name in taken.items():
        print(f"{op:15} {name:17} {n * 4:>11,} {ranks} {statistics.median(of_name) * 1e3:8.2f} ms")
    return [
        {"op": op, "algorithm": name, "bytes": n * 4, "ranks": ranks, "times": times}
        | {"s": statistics.median(of_name), "low_s": min(of_name), "high_s": max(of_name)}
        for name, of_name in taken.items()
    ]


def time_all(group: Group, op: str, n: int, times: int) -> dict[str, list[float]]:
    """Times of each way to do `op` on n numbers, in turns (s); the first turn warms up."""
    x, out = (t.zero_() for t in buffers(group, op, n, torch.float32))
    works = {name: work for name, work in OPS[op].items() if (op, name) in WAYS}
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(times + 1):
        for name, work in works.items():
            call = partial(work, group, x, out)
            taken[name] += seconds(group, call, times=1, warm_up=0)
    return {name: of_name[1:] for name, of_name in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sweep", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few turns")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    found = measure(options.quick)
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    text = f'{{"env": {json.dumps(found["env"])}, "rows": [\n{rows}\n]}}\n'
    if options.record:
        (ROOT / "bench/recorded/sweep.json").write_text(text)


if __name__ == "__main__":
    main()
