"""What all tests share: pools of warm ranks, so that a property costs milliseconds an example."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from distributed.world import World, world

# A shell's background job ignores Ctrl+C, and so would every script that a test starts to press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Pools:
    """Ranks that stay up for a test module, one world for each number of ranks asked for."""

    def __init__(self, stack: ExitStack):
        self.stack = stack
        self.worlds: dict[int, World] = {}

    def __getitem__(self, ranks: int) -> World:
        if ranks not in self.worlds or not self.worlds[ranks].processes:  # ended by a failure
            self.worlds[ranks] = self.stack.enter_context(world(ranks, device="cpu"))
        return self.worlds[ranks]


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with ExitStack() as stack:
        yield Pools(stack)
