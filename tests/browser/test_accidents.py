"""Cells that take too much: the page says what happened, and the reader can go on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_page import LivePage
from serving import Server, running_server

BASE, DERIVED, PRODUCT, TICKS = range(4)


@pytest.fixture(scope="module")
def strict(small_book: Path) -> Iterator[Server]:
    limits = ("--processes", "12", "--text", "0.1", "--memory", "4")
    with running_server(small_book, ("--no-browser", *limits)) as server:
        yield server


@pytest.fixture
def live(visit: Callable[..., LivePage], strict: Server) -> LivePage:
    return visit(strict).open("cells.html")


def test_endless_printing_is_stopped_and_the_kernel_keeps_what_it_knows(live: LivePage) -> None:
    assert live.run_and_wait(PRODUCT) == "product 42"
    live.edit(TICKS, "import time", "while True: print('again ' * 20)\nimport time")
    live.run(TICKS)
    live.wait_state(TICKS, "stopped")
    assert "This run was stopped: it printed more than 0.1 MB." in live.output(TICKS)
    live.reset(TICKS)
    assert live.run_and_wait(TICKS).startswith("tick 0")
    assert live.state(PRODUCT) == "ran"  # nothing was lost


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("[__import__('os').fork() for _ in range(6)]\n__import__('time').sleep(20)", "processes"),
        ("hog = [b'x' * 100_000_000 for _ in range(60)]", "GB of memory"),
    ],
    ids=["forks", "memory"],
)
@pytest.mark.slow
def test_a_cell_that_takes_too_much_says_so_and_the_next_press_works(
    live: LivePage, code: str, why: str
) -> None:
    live.edit(BASE, "class Base:", f"{code}\nclass Base:")
    live.run(BASE)
    live.wait_state(BASE, "lost")
    assert "This kernel was ended: it" in live.output(BASE)
    assert why in live.output(BASE)
    live.wait_status("ready")
    live.reset(BASE)
    assert live.run_and_wait(PRODUCT) == "product 42"
