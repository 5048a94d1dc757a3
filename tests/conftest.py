"""What all tests share: the built book, and pools of warm ranks.

`make test` leaves out what is marked `slow` and draws few examples; `make test-all`, like pytest
by itself, runs everything at full strength.
"""

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from pools import Pools

from distributed.runtime import fork_server
from distributed.runtime.shared_buffers import stores_in_order
from playground.build.outputs import stale
from playground.build.toc import pages_in_order

# A shell's background job ignores Ctrl+C, and so would every script that a test starts to press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


ROOT = Path(__file__).parents[1]

# A rank imports the test's module for the function that it runs: once here, not in every rank.
fork_server.IMPORTED += ["hypothesis.strategies", "pytest"]
fork_server.IMPORTED += [
    f"distributed.{name}" for name in ("compressors", "ddp", "zero.checkpoint")
]

settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("full", max_examples=150, deadline=None)
settings.load_profile("full")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores, because a quarter of the time a test waits for a clock or for
    a process to end; but few: most start ranks or a browser of their own."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(4, cores + 1)


def pytest_configure(config: pytest.Config) -> None:
    """Which pages are stale takes two seconds to find out: once, and not in each worker."""
    if getattr(config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["STALE_PAGES"] = " ".join(stale(ROOT, pages_in_order(ROOT)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many tests first. Of those that need the built book, one begins, and the others
    come last: by then it has been built, and no worker waits."""
    number = Counter(item.path for item in items)
    users = {item.path for item in items if "built" in getattr(item, "fixturenames", ())}
    first = max(sorted(users), key=lambda path: number[path], default=None)
    items.sort(key=lambda item: (item.path != first, item.path in users, -number[item.path]))


gc.disable()  # thousands of tests and all of torch stay to the end: no looking for garbage there


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the built book, which is built if something has changed since."""
    # A kernel that finds pytest's mark does not show what its ranks print.
    ours = ("MAKE", "PYTEST")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    (ROOT / "_build").mkdir(exist_ok=True)
    with open(ROOT / "_build/tests.lock", "w") as lock:  # tests of several workers want it
        fcntl.flock(lock, fcntl.LOCK_EX)
        build = subprocess.run(
            ["make", "book"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    assert build.returncode == 0, build.stdout + build.stderr
    return ROOT / "_build/html"


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with ExitStack() as stack:
        yield Pools(stack)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of tokens, which code/scripts/train.py learns."""
    from playground.lab.rehearsal import write_tokens  # late: most tests need no torch

    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Where ranks cannot share memory, on all but x86, what needs that is skipped."""
    try:
        return (yield)
    except BaseException as error:
        if not stores_in_order() and "which needs x86" in f"{error!r}":
            pytest.skip("this processor may change the order of stores: no shared memory")
        raise
