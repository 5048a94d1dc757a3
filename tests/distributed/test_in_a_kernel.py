"""Ranks launched from a Jupyter kernel, as every live cell does."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from waiting import soon

from playground.server.limits import has_ended

SLEEP = """
import os, time
from distributed.launching import launch

def sleep(group):
    print("pid", os.getpid())
    time.sleep(600)

launch(sleep, ranks=3, device="cpu", timeout=None)
"""


class Kernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient):
        self.manager, self.client = manager, client

    def start(self, code: str) -> None:
        self.cell = self.client.execute(code)

    def read_until(self, stop, seconds=60) -> str:
        """The output up to where `stop(text)` holds, or to the end of the cell."""
        text, give_up = "", time.monotonic() + seconds
        while time.monotonic() < give_up and not stop(text):
            message = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") != self.cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "error":
                text += "\n".join(content["traceback"])
            elif message["msg_type"] == "execute_result":
                text += content["data"]["text/plain"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return text
        return text

    def run(self, code: str) -> str:
        self.start(code)
        return self.read_until(lambda text: False)

    def pids(self) -> list[int]:
        found = lambda text: re.findall(r"pid (\d+)", text)  # noqa: E731
        return [int(pid) for pid in found(self.read_until(lambda text: len(found(text)) == 3))]


@contextmanager
def a_kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield Kernel(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Kernel]:
    """For tests that leave their kernel as it was: two imports of torch are most of each."""
    with a_kernel() as kernel:
        yield kernel


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with a_kernel() as kernel:
        yield kernel


def test_functions_and_classes_of_cells_run_also_after_they_are_defined_anew(lasting):
    lasting.run(
        """
        import torch
        torch.rand(500, 500) @ torch.rand(500, 500)  # starts threads that a fork would break
        from distributed.launching import launch

        class Model:
            factor = 2
            def answer(self, group): return group.rank * self.factor

        def work(group): return Model().answer(group)
        """
    )
    assert "[0, 2, 4]" in lasting.run("launch(work, ranks=3, device='cpu')")
    lasting.run("Model.factor = 5\ndef work(group): return 1 + Model().answer(group)")
    assert "[1, 6, 11]" in lasting.run("launch(work, ranks=3, device='cpu')")


def test_an_error_points_into_the_cell_and_hides_the_machinery(lasting):
    lasting.run("from distributed.launching import launch")
    error = lasting.run("def work(group):\n    return 1 / group.rank\n\nlaunch(work, ranks=2)")
    assert "RankError: rank 0 raised ZeroDivisionError: division by zero" in error
    assert re.search(r"at Cell In\[\d+\], line 2, in work: return 1 / group.rank", error)
    assert "launching.py" not in error


def test_interrupting_the_kernel_ends_the_ranks_and_the_kernel_lives_on(lasting):
    lasting.start(SLEEP)
    pids = lasting.pids()
    lasting.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in lasting.read_until(lambda text: False)
    assert all(has_ended(pid) for pid in pids)
    assert "[0, 1]" in lasting.run("launch(lambda group: group.rank, ranks=2)")


@pytest.mark.slow
def test_a_kernel_of_the_book_ends_by_itself_after_a_launch(kernel):
    """Jupyter killed it after 2.5 s: it waited for children that nobody could end but itself."""
    kernel.run("import playground.server.shutdown\nfrom distributed.launching import launch")
    assert "[0, 1]" in kernel.run("launch(lambda group: group.rank, ranks=2)")
    kernel.client.shutdown()
    assert kernel.manager.provisioner.process.wait(timeout=10) == 0


@pytest.mark.slow
def test_restarting_the_kernel_ends_the_ranks(kernel):
    kernel.start(SLEEP)
    pids = kernel.pids()
    kernel.manager.restart_kernel(now=True)
    assert soon(lambda: all(has_ended(pid) for pid in pids))
    kernel.client.wait_for_ready(timeout=60)
    assert "[0, 1]" in kernel.run(
        "from distributed.launching import launch\nlaunch(lambda group: group.rank, ranks=2)"
    )


@pytest.mark.slow
def test_shutting_the_kernel_down_ends_the_ranks(kernel):
    kernel.start(SLEEP)
    pids = kernel.pids()
    kernel.manager.shutdown_kernel(now=False)
    assert soon(lambda: all(has_ended(pid) for pid in pids))


IMPORTED = """
import sys
from distributed.launching import launch

names = ["torch", "torch._dynamo"]
launch(lambda group: print([name in sys.modules for name in names]), ranks=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before", ["", "import playground.server.warm"], ids=["plain", "of a page"]
)
def test_a_rank_starts_with_what_takes_long_to_import(kernel: Kernel, before: str) -> None:
    """The kernel of a page, which warms up early, once left half of it to every single rank."""
    assert "[True, True]" in kernel.run(before + IMPORTED)
