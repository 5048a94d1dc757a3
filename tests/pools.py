"""Pools of warm ranks: a test module, or the fuzzer, starts a world once and uses it many times."""

from contextlib import ExitStack

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
