"""What all tests share: two lanes, the built book, and pools of warm ranks.

The lanes run side by side (`make test` says `-n 2`): one builds the book, looks at what was built
and reads it in a browser, the other tests the code.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from distributed.world import World, world

# A shell's background job ignores Ctrl+C, and so would every script that a test starts to press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


ROOT = Path(__file__).parents[1]
PAGES_LANE = ("tests/browser/", "tests/built/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "pages" if nodeid.startswith(PAGES_LANE) else "code"

    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "built" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(PAGES_LANE):
            raise pytest.UsageError(f"{item.nodeid} asks for the built book: see PAGES_LANE")


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the built book, which is built if something has changed since."""
    # A kernel that finds pytest's mark does not show what its ranks print.
    ours = ("MAKE", "PYTEST")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    build = subprocess.run(
        ["make", "book"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return ROOT / "_build/html"


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
