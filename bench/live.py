"""How long a reader waits: from pressing Run to the painted output, in a real browser.

The page's own clock runs from the press until the cell has its output and the next picture is
drawn. For the first run on a page, the page has been open for a while, like a page that is read.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.manager import start_new_kernel

from bench.pairs import ROOT, compare, seconds
from playground.browser import find_browser

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/browser")]  # a reader as the tests know it

from live_page import OPTIONS, LivePage  # type: ignore[import-not-found]  # noqa: E402
from plain import plain  # type: ignore[import-not-found]  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from serving import running_server  # noqa: E402

PAGE = "book/index.html"
READING = 8  # seconds between the opening of a page and the first press
TORCH = """
import torch
weights = torch.ones(3, requires_grad=True)
(weights**2).sum().backward()
print(weights.grad)
"""
RANKS = """
import numpy as np
from distributed import launch
def average_gradients(group):
    gradient = np.full(3, float(group.rank))
    group.all_reduce(gradient, op="avg")
    print("my gradient is now", gradient)
launch(average_gradients, ranks=4)
"""
# The cell has what a reader wrote on an earlier visit, without loading an editor.
WRITE = """async code => {
  const root = new URL(document.documentElement.dataset.content_root, location);
  const { write } = await import(new URL("_static/live-edits.js", root));
  write(0, document.querySelector("div.cell[data-live] pre").innerText, code);
}"""
PRESS = """() => new Promise((resolve) => {
  const cell = document.querySelector("div.cell[data-live]");
  const pressed = performance.now();
  new MutationObserver(() => {
    if (["queued", "running"].includes(cell.dataset.state)) return;
    requestAnimationFrame(() => setTimeout(
      () => resolve([cell.dataset.state, (performance.now() - pressed) / 1000])));
  }).observe(cell, { attributeFilter: ["data-state"] });
  cell.querySelector(".live-run").click();
})"""


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    yield "live/first_run/torch", lambda quick: first_run("torch", TORCH, 1, quick)
    yield "live/first_run/r4", lambda quick: first_run("r4", RANKS, 4, quick)
    yield "live/warm_run/r4", warm_run
    yield "live/tab_first_run/r4", tab_first_run
    yield "live/tab_warm_run/r4", tab_warm_run


@contextmanager
def a_reader(code: str) -> Iterator[Callable[[], LivePage]]:
    """A browser that opens the page again at every call; its first cell contains `code`."""
    with (
        running_server(ROOT / "_build/html", warm=True) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS) as browser,
        browser.new_context() as context,
    ):
        context.request.get(server.open_url)
        page = LivePage(context.new_page(), server.url).open(PAGE)
        page.page.evaluate(WRITE, code.strip())
        page.page.close()
        yield lambda: LivePage(context.new_page(), server.url).open(PAGE)


def press(page: LivePage) -> float:
    """Seconds from the press to the painted output, by the page's clock."""
    state, waited = page.page.evaluate(PRESS)
    assert state == "ran", page.output(0)
    return float(waited)


def run_in(client: Any, code: str) -> None:
    client.execute_interactive(code, timeout=60, output_hook=lambda message: None)


def bare_kernel(code: str) -> None:
    """Start a kernel, run this in it, and end it."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        run_in(client, code)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def first_run(name: str, code: str, ranks: int, quick: bool) -> dict[str, Any]:
    """The first press on a page; the peer starts a kernel when it is pressed, as notebooks do."""

    with a_reader(code) as open_page:

        def first() -> float:
            page = open_page()
            try:
                page.page.wait_for_timeout(READING * 1000)
                return press(page)
            finally:
                page.page.close()

        row = compare(
            f"live/first_run/{name}",
            first,
            "bare kernel",
            lambda: seconds(lambda: bare_kernel(code)),
            pairs=1 if quick else 7,
            ranks=ranks,
        )
        return row | {"open_s": READING}


def warm_run(quick: bool) -> dict[str, Any]:
    """Run once more, when the kernel and the fork server are there."""
    with a_reader(RANKS) as open_page:
        page = open_page()
        press(page)
        return beside_a_warm_kernel("live/warm_run/r4", page, quick)


def beside_a_warm_kernel(name: str, page: LivePage, quick: bool) -> dict[str, Any]:
    """A press on a page on which all is warm, and the same code in a kernel that is."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        return compare(
            name,
            lambda: press(page),
            "bare kernel",
            lambda: seconds(lambda: run_in(client, RANKS)),
            pairs=5 if quick else 20,
            ranks=4,
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def a_tab() -> Iterator[Callable[[], LivePage]]:
    """A page from a server of files alone, opened at every call by a reader who is new to it."""
    with (
        plain(ROOT / "_build/html") as origin,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS) as browser,
    ):
        yield lambda: LivePage(browser.new_context().new_page(), origin).open(PAGE)


def press_in_tab(page: LivePage) -> float:
    """Seconds from the press to the output, by our clock: the page may be loaded again."""
    done = seconds(lambda: page.run_and_wait(0))
    assert "in your browser" in page.words(0)
    return done


def tab_first_run(quick: bool) -> dict[str, Any]:
    """The first press where nothing has come yet, and Python starts in the tab."""

    with a_tab() as open_page:

        def first() -> float:
            page = open_page()
            try:
                page.page.wait_for_timeout(READING * 1000)
                return press_in_tab(page)
            finally:
                page.page.context.close()

        return compare(
            "live/tab_first_run/r4",
            first,
            "bare kernel",
            lambda: seconds(lambda: bare_kernel(RANKS)),
            pairs=1 if quick else 7,
            ranks=4,
        )


def tab_warm_run(quick: bool) -> dict[str, Any]:
    """Run once more, when the workers of the tab are there."""
    with a_tab() as open_page:
        page = open_page()
        press_in_tab(page)
        return beside_a_warm_kernel("live/tab_warm_run/r4", page, quick)
