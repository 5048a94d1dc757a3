"""Our collectives against the backend's, in turns, by ranks that are up and warm."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.pairs import summary
from distributed import Group, world
from distributed.instruments.collective_times import OPS
from distributed.runtime.script import to_bytes
from distributed.shared_memory import SharedGroup
from distributed.workbench.measure import buffers, seconds

SIZES = ["4KB", "256KB", "4MB", "64MB"]
LARGE = ["4MB", "64MB"]
# Bytes that a rank reads and writes for each byte of its array. Shared: copied in (2), one N-th of
# every rank's read (1), written twice (2/N), the other parts copied out (2 − 2/N). Resident: one
# N-th of every rank's read, and the sum written to all of them.
MOVED = {"shared": 5, "resident": 2}
ALL_REDUCE = ["central", "naive", "tree", "halving_doubling", "double_tree"]


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    """all_reduce/ring/64MB/r4 and so on; "resident" is a tensor that lives in shared memory."""
    chosen = [("all_reduce", "ring", size, ranks) for size in SIZES for ranks in (2, 4)]
    chosen += [("all_reduce", name, size, 4) for name in ALL_REDUCE for size in SIZES]
    for op, names in {
        "all_reduce": ["shared", "resident"],
        "reduce_scatter": ["ring", "shared"],
        "all_gather": ["ring", "shared"],
    }.items():
        chosen += [(op, name, size, ranks) for name in names for size in LARGE for ranks in (2, 4)]
    for op, algorithm, size, ranks in chosen:
        name = f"{op}/{algorithm}/{size}/r{ranks}"
        yield name, partial(against_backend, name, op, algorithm, to_bytes(size), ranks)


def against_backend(
    name: str, op: str, algorithm: str, size: int, ranks: int, quick: bool
) -> dict[str, Any]:
    pairs = 3 if quick else 11 if size > 1_000_000 else 41
    with world(ranks, device="cpu") as run:
        ours, theirs, copies = run(in_turns, op, algorithm, size // 4, pairs)[0]
    times = list(zip(ours, theirs, strict=True))
    row = summary(name, times, f"gloo {op}", ranks, size) | {"copy_s": statistics.median(copies)}
    if op == "all_reduce" and algorithm in MOVED:
        speeds = zip(ours, copies, strict=True)
        row["memory_share"] = statistics.median(share(algorithm, *pair) for pair in speeds)
    return row


def share(algorithm: str, ours: float, copy: float) -> float:
    """Bytes per second that an all-reduce moves, as a share of a plain copy's by all ranks."""
    copied = 2  # bytes read and written for each byte that is copied
    return (MOVED[algorithm] / ours) / (copied / copy)


def in_turns(
    group: Group, op: str, algorithm: str, n: int, pairs: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of ours, of the backend's, and of a plain copy by all ranks at the same time."""
    x, out = (t.zero_() for t in buffers(group, op, n, torch.float32))
    work = OPS[op].get(algorithm, OPS[op]["backend"])
    ours_group = SharedGroup(group) if algorithm in ("shared", "resident") else group
    ours_x = ours_group.empty(n).zero_() if algorithm == "resident" else x
    elsewhere = torch.zeros_like(x)
    calls: list[Callable[[], Any]] = [
        lambda: work(ours_group, ours_x, out),
        lambda: OPS[op]["backend"](group, x, out),
        lambda: elsewhere.copy_(x),
    ]
    taken: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(pairs + 1):
        for times, call in zip(taken, calls, strict=True):
            times += seconds(group, call, times=1, warm_up=0)
    return taken[0][1:], taken[1][1:], taken[2][1:]
