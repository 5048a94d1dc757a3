"""Pools of warm ranks: a test module, or the fuzzer, starts a world once and uses it many times."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from distributed.launching import world
from distributed.runtime.caller import World


class Pools:
    """Ranks that stay up for a test module, one world for each number of ranks asked for."""

    def __init__(self, stack: ExitStack):
        self.stack = stack
        self.worlds: dict[int, World] = {}

    def __getitem__(self, ranks: int) -> World:
        if ranks not in self.worlds or not self.worlds[ranks].processes:  # ended by a failure
            self.worlds[ranks] = self.stack.enter_context(world(ranks, device="cpu"))
        return self.worlds[ranks]


def launch_with_clock(fn: Callable[..., Any], *args: Any, ranks: int, timeout: float) -> list[Any]:
    """`launch` on the CPU, but the time (s) runs from when every rank has begun.

    On a machine with other work, the start alone may take longer than what a test allows for.
    """
    with world(ranks, device="cpu") as run:
        run(lambda group: group.barrier(), timeout=300)  # no start takes that long
        return run(fn, *args, timeout=timeout)
