"""Launcher: run one function in several processes, which form a group of ranks.

`launch(fn, ranks=4)` starts four processes, joins them into one group, calls `fn(group)` in each
and returns the four results in rank order. A call ends when its timeout is over, and its processes
end with it.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from distributed.runtime.caller import World, check_threads, check_timeout, pack_call
from distributed.runtime.group import Group
from distributed.runtime.script import run_script, under_torchrun
from distributed.runtime.torchrun import run_as_torchrun_rank


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    device: str = "auto",
    threads: int | None = None,
    timeout: float | None = 60.0,
) -> list[Any]:
    """Call `fn(group, *args)` in each of `ranks` processes; return the results in rank order.

    `device` is "auto", "cpu" or "cuda". `threads` is the number of compute threads per rank
    (default: 1). `timeout` is in seconds. Under torchrun, this process is a rank already, so `fn`
    runs here, in torchrun's world and with torchrun's threads unless `threads` is given, and no
    collective waits longer than `timeout`.

    Raises ValueError or TypeError before any process starts if an argument is wrong, RankError if a
    rank raises or dies, and RanksHang (a TimeoutError) if ranks don't finish in time. The message
    of RanksHang has the line in which each rank is waiting.
    """
    check_timeout(timeout)
    check_threads(threads)
    if under_torchrun():
        return run_as_torchrun_rank(fn, args, device, threads, timeout)
    call = pack_call(fn, args)
    with world(ranks, device, threads) as run:
        return run.packed(call, timeout)


@contextlib.contextmanager
def world(ranks: int = 4, device: str = "auto", threads: int | None = None) -> Iterator[World]:
    """Keep ranks running for several calls: `with world(4) as run: run(fn, 1); run(fn, 2)`."""
    run = World(ranks, device, threads)
    try:
        yield run
        run.dismiss()
    finally:
        run.kill()


def main(ranks: int = 4) -> None:
    """Start ranks, print the number and the process of each, and add up the numbers."""

    def introduce(group: Group) -> float:
        print(f"I am rank {group.rank} of {group.size}, process {os.getpid()}")
        return group.all_reduce(torch.tensor(float(group.rank))).item()

    sums = launch(introduce, ranks=ranks)
    print("the sum of all ranks' numbers, as each rank has it:", sums)
    assert sums == [sum(range(len(sums)))] * len(sums)


if __name__ == "__main__":
    run_script(main)
