"""`python -m bench.cpu [SIZE…]`: processor time of an all-reduce, ours and gloo's, on this machine.

On fewer processors than ranks a collective takes as long as all ranks compute in it. So this is a
profile of the ring that other programs on the machine hardly disturb: for each rank and call, time
in its own code (adding up), in the kernel (copying into and out of sockets), and how often a thread
of it went to sleep. `messages` are those that the rank sends, and gloo does not say how many.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from distributed import Group, world
from distributed.all_reduce import ring, ring_sent
from distributed.halving_doubling import halving_doubling, halving_doubling_sent
from distributed.runtime.script import to_bytes

RANKS, ROUNDS, WARM_UP = 4, 9, 2
WAYS: dict[str, Any] = {
    "gloo": None,
    "ring": (ring, ring_sent),
    "halving_doubling": (halving_doubling, halving_doubling_sent),
}


class Used(NamedTuple):
    """Of one call on one rank: seconds, seconds of the processor, and waits of its threads."""

    wall: float
    user: float
    kernel: float
    sleeps: float


def used_by(call: Callable[[], Any], times: int) -> Used:
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(times):
        call()
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    total = Used(
        wall,
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        after.ru_nvcsw - before.ru_nvcsw,
    )
    return Used(*(value / times for value in total))


def in_turns(group: Group, n: int, times: int) -> dict[str, Used]:
    """Medians of one rank, the ways in turns."""
    x = torch.zeros(n)
    found: dict[str, list[Used]] = {name: [] for name in WAYS}
    for _ in range(WARM_UP + ROUNDS):
        for name, way in WAYS.items():
            group.barrier()
            call = partial(group.reduce_by, way[0], x) if way else partial(group.all_reduce, x)
            found[name].append(used_by(call, times))
    return {
        name: Used(*map(statistics.median, zip(*each[WARM_UP:], strict=True)))
        for name, each in found.items()
    }


def main(sizes: list[str]) -> None:
    print(f"{'':26}{'wall':>9}{'user':>9}{'kernel':>9}{'both':>9}   sleeps messages")
    for size in sizes:
        n = to_bytes(size) // 4
        with world(RANKS, device="cpu") as run:
            ranks = run(in_turns, n, min(30, max(1, 8_000_000 // (4 * n))))
        for name, way in WAYS.items():
            used = Used(*map(statistics.mean, zip(*(rank[name] for rank in ranks), strict=True)))
            times = (*used[:3], used.user + used.kernel)
            columns = "".join(f"{1e3 * value:6.2f} ms" for value in times)
            sent = f"{way[1](n, 0, RANKS).messages:9}" if way else ""
            print(f"{size:>8} {name:17}{columns}{used.sleeps:9.1f}{sent}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["256KB", "4MB", "64MB"])
