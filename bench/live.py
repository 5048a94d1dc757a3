"""How long a reader waits: from pressing Run to the four ranks' output, in a real browser."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.manager import start_new_kernel

from bench.pairs import ROOT, compare, seconds

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/browser")]  # a reader as the tests know it

from live_page import OPTIONS, LivePage, find_browser  # type: ignore[import-not-found]  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from serving import running_server  # noqa: E402

PAGE = "book/index.html"  # its first cell launches four ranks
CODE = """
import numpy as np
from distributed.world import launch
def average_gradients(group):
    gradient = np.full(3, float(group.rank))
    group.all_reduce(gradient, op="avg")
launch(average_gradients, ranks=4)
"""


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    yield "live/first_run", first_run
    yield "live/warm_run", warm_run


@contextmanager
def a_reader() -> Iterator[Callable[[], LivePage]]:
    """A browser that opens the page anew at every call."""
    with (
        running_server(ROOT / "_build/html") as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS) as browser,
        browser.new_context() as context,
    ):
        context.request.get(server.open_url)
        yield lambda: LivePage(context.new_page(), server.url).open(PAGE)


def run_cell(page: LivePage) -> float:
    """Seconds from the press to the output of all four ranks, by this process's clock."""

    def press_and_see() -> None:
        page.run(0)
        page.wait_state(0, "ran")

    return seconds(press_and_see)


def bare_kernel() -> float:
    """The peer: the same cell in a new kernel, with no page and no server."""

    def start_and_run() -> None:
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            client.execute_interactive(CODE, timeout=60, output_hook=lambda message: None)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)

    return seconds(start_and_run)


def first_run(quick: bool) -> dict[str, Any]:
    """Run on a page without a kernel: kernel, torch and fork server start first."""
    with a_reader() as open_page:

        def first() -> float:
            page = open_page()
            try:
                return run_cell(page)
            finally:
                page.page.close()

        return compare(
            "live/first_run", first, "bare kernel", bare_kernel, pairs=2 if quick else 7, ranks=4
        )


def warm_run(quick: bool) -> dict[str, Any]:
    """Run once more, when the kernel and the fork server are there."""
    with a_reader() as open_page:
        page = open_page()
        run_cell(page)
        manager, client = start_new_kernel(kernel_name="python3")
        try:

            def in_kernel() -> float:
                return seconds(
                    lambda: client.execute_interactive(
                        CODE, timeout=60, output_hook=lambda message: None
                    )
                )

            return compare(
                "live/warm_run",
                lambda: run_cell(page),
                "bare kernel",
                in_kernel,
                pairs=5 if quick else 20,
                ranks=4,
            )
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
