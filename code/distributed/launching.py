"""A world of ranks: run one function in several processes at once.

`launch(fn, ranks=4)` starts four processes, joins them into one group, calls `fn(group)` in each
and returns the four results in rank order. No call outlives its timeout, and no process outlives
its call.
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

    `device` is "auto", "cpu" or "cuda"; `threads` is how many compute threads each rank has (1, if
    not given); `timeout` is in seconds. Under torchrun this process is a rank already: `fn` runs
    here, in the world that is there, with torchrun's threads if none are given, and no collective
    waits longer than `timeout`. Raises ValueError or TypeError before any process starts when an
    argument is wrong, RankError when a rank raises or dies, and RanksHang (a TimeoutError), with
    the line on which each rank stands, when they do not finish.
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
    """Keep ranks warm for many calls: `with world(4) as run: run(fn, 1); run(fn, 2)`."""
    run = World(ranks, device, threads)
    try:
        yield run
        run.dismiss()
    finally:
        run.kill()


def main(ranks: int = 4) -> None:
    """Start ranks, let each say who it is, and add up their numbers."""

    def introduce(group: Group) -> float:
        print(f"I am rank {group.rank} of {group.size}, process {os.getpid()}")
        return group.all_reduce(torch.tensor(float(group.rank))).item()

    sums = launch(introduce, ranks=ranks)
    print("the sum of all ranks' numbers, as each rank has it:", sums)
    assert sums == [sum(range(len(sums)))] * len(sums)


if __name__ == "__main__":
    run_script(main)
