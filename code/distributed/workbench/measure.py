"""Time a collective, and say how fast that is.

`time` alone tells little: the same collective takes longer for more bytes and on more ranks. The
*algorithm bandwidth* is size / time. The *bus bandwidth* also counts how often each byte must cross
a link of each rank, at least, and so can be compared with the speed of the link (NCCL's tests,
PERFORMANCE.md).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from distributed import Group
from distributed.runtime.trace import Trace

Collective = Callable[[Group, torch.Tensor, torch.Tensor], object]  # work(group, x, out)
PERIOD = 29  # numbers after which `values` begin again

# bus bandwidth ÷ algorithm bandwidth: how often each byte crosses each rank's link, at least
CROSSINGS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1,
    "reduce": lambda ranks: 1,
}


def count(
    group: Group, n: int, algorithm: Callable[[Group, Any, Callable[..., Any]], None]
) -> tuple[int, int]:
    """Sum x[n] of float32 over the ranks by `algorithm`, and check it.

    Returns what this rank sent: elements, and messages.
    """
    x = torch.full((n,), float(group.rank))
    group.trace = trace = Trace(group.rank)
    algorithm(group, x, torch.add)
    group.trace = None
    assert (x == sum(range(group.size))).all()
    return trace.sent // x.itemsize, trace.messages


def seconds(
    group: Group, work: Callable[[], object], times: int = 11, warm_up: int = 1
) -> list[float]:
    """How long `work()` takes, each time, until the last rank has done it (s)."""
    taken = torch.empty(warm_up + times, dtype=torch.float64)
    for i in range(warm_up + times):
        group.barrier()
        started = time.perf_counter()
        work()
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        taken[i] = time.perf_counter() - started
    return Group.all_reduce(group, taken.to(group.device), op="max").tolist()[warm_up:]


def all_reduce_times(group: Group, sizes: Sequence[int], times: int = 7) -> list[float]:
    """The median time of an all-reduce of each size (bytes → s)."""
    arrays = [torch.zeros(size // 4, device=group.device) for size in sizes]
    works = [partial(group.all_reduce, x) for x in arrays]
    return [statistics.median(seconds(group, work, times)) for work in works]


def values(ranks: int) -> torch.Tensor:
    """table[ranks, PERIOD]: what each rank's array repeats, whole numbers from −2 to 2.

    They look like chance, so that what is added twice, left out or misplaced shows. The sums of
    hundreds of ranks stay small enough for bfloat16 and int8 to hold them exactly, in any order.
    """
    rank, position = torch.arange(1, ranks + 1)[:, None], torch.arange(2, PERIOD + 2)
    return rank * position % 31 % 5 - 2


def buffers(group: Group, op: str, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x and out of one collective on n numbers; each rank's x differs, and so does each part."""
    row = values(group.size)[group.rank].to(group.device, dtype)
    whole = row.repeat(-(-n // PERIOD))[:n]
    part = n // group.size
    small_x, small_out = op in ("gather", "all_gather"), op in ("scatter", "reduce_scatter")
    x = whole[:part].clone() if small_x else whole
    return x, torch.zeros_like(whole[:part] if small_out else whole)


def is_right(group: Group, op: str, n: int, x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether x and out are what the collective should have made of all ranks' `buffers`."""
    s, r = n // group.size, group.rank
    table = values(group.size).to(x.device)
    total = table.sum(0)
    if op == "reduce" and r > 0:
        return True  # what is left there is nobody's business
    if op in ("all_reduce", "reduce", "broadcast"):
        return repeats(x, table[0] if op == "broadcast" else total)
    if op in ("scatter", "reduce_scatter"):
        return repeats(out, table[0] if op == "scatter" else total, r * s)
    if op == "gather" and r > 0:
        return not out.any()
    start = r * s if op == "all_to_all" else 0
    parts = zip(out.view(group.size, s), table, strict=True)
    return all(repeats(part, row, start) for part, row in parts)


def repeats(got: torch.Tensor, row: torch.Tensor, start: int = 0) -> bool:
    """Whether got[i] is row[(start + i) % PERIOD], found without an array of what is expected."""
    row = row.roll(-start).to(got.dtype)
    periods, rest = divmod(len(got), PERIOD)
    whole, last = got[: periods * PERIOD].view(periods, PERIOD), got[periods * PERIOD :]
    return bool((whole == row).all() and (last == row[:rest]).all())


def time_one(
    group: Group, work: Collective, op: str, n: int, dtype: torch.dtype, times: int
) -> tuple[list[float], bool]:
    """How long `work(group, x, out)` took (s), and whether every rank got what it should."""
    x, out = buffers(group, op, n, dtype)
    work(group, x, out)
    wrong = torch.tensor([not is_right(group, op, n, x, out)], dtype=torch.int32)
    wrong = group.all_reduce(wrong.to(group.device))
    x.zero_()  # summed again and again, other numbers would grow
    return seconds(group, lambda: work(group, x, out), times), not wrong.item()


def row(op: str, algorithm: str, size: int, ranks: int, times: Sequence[float], right: bool) -> str:
    """One line of the table, in the manner of NCCL's tests."""
    median = statistics.median(times)
    bandwidth = size / median / 1e9
    bus = bandwidth * CROSSINGS[op](ranks)
    ok = "ok" if right else "WRONG"
    return f"{size:>13,} {algorithm:>16} {median * 1e6:>12,.0f} {bandwidth:>9.3f} {bus:>9.3f}  {ok}"


HEADER = f"{'bytes':>13} {'algorithm':>16} {'time (µs)':>12} {'alg GB/s':>9} {'bus GB/s':>9}  check"


def fit(steps: Sequence[float], sizes: Sequence[float], times: Sequence[float]) -> np.ndarray:
    """α (s) and β (s/byte) with α·steps + β·sizes closest to times, as a part of each; none < 0."""
    a = np.column_stack([steps, sizes]) / np.asarray(times)[:, None]
    best, error = np.zeros(2), np.inf
    for columns in ([0, 1], [0], [1]):  # the best of those that keep what they use above 0
        found, *_ = np.linalg.lstsq(a[:, columns], np.ones(len(a)), rcond=None)
        both = np.zeros(2)
        both[columns] = found
        residual = float(((a @ both - 1) ** 2).sum())
        if (found > 0).all() and residual < error:
            best, error = both, residual
    return best
