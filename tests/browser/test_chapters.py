"""The real chapters in a real browser: read, run, edit, break."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_page import LivePage
from looks import (
    needs_scrolling_sideways,
    take_pictures,
    violations_in_both_themes,
    weight_before_a_press,
)
from serving import Server, running_server

from playground.build.outputs import stale
from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[2]
PAGES = [f"{name}.html" for name in pages_in_order(ROOT)]
LOOKED_AT = [  # pictures, tables, figures of steps, a calculator
    "book/index.html",
    "book/zero/memory.html",
]
KNOWN = os.environ.get("STALE_PAGES")  # from conftest.py, if there are workers
NAMES = stale(ROOT, pages_in_order(ROOT)) if KNOWN is None else KNOWN.split()
STALE = [f"{name}.html" for name in NAMES]


def soon(pages: list[str]) -> list[str]:
    """Those, and what has been changed since its outputs were recorded; the others are slow."""
    return [page for page in PAGES if page in pages or page in STALE]


def in_twos(pages: list[str]) -> list[list[str]]:
    return [pages[i : i + 2] for i in range(0, len(pages), 2)]


def and_later(pages: list[str]) -> list[str]:
    return [page for page in PAGES if page not in soon(pages)]


EACH = [
    *soon(LOOKED_AT),
    *(pytest.param(page, marks=pytest.mark.slow) for page in and_later(LOOKED_AT)),
]
TOGETHER = [
    *(pytest.param(pages, id=" and ".join(pages)) for pages in in_twos(STALE)),
    *(
        pytest.param(pages, id=" and ".join(pages), marks=pytest.mark.slow)
        for pages in in_twos(and_later([]))
    ),
]
PICTURES = {  # that people look at: page → the part of it that is in the middle
    "book/index.html": "h1",
    "book/first_steps/data_parallelism.html": ".cell_output img",
    "book/first_steps/several_processes.html": ".steps",
    "book/collectives/all_reduce.html": ".steps",
    "book/zero/memory.html": ".calculator",
    "book/zero/exercises.html": ".verdict",
}


@pytest.fixture(scope="module")
def book(built: Path) -> Iterator[Server]:
    with running_server(built, warm=True) as server:
        yield server


@pytest.fixture(scope="module")
def shelf(built: Path) -> Iterator[Server]:
    """The book for those who look at it: no kernel starts for a page on which nothing runs."""
    with running_server(built, ("--no-browser", "--no-spare")) as server:
        yield server


def test_a_reader_runs_edits_and_breaks_data_parallelism(
    visit: Callable[..., LivePage], book: Server
) -> None:
    page = visit(book).open("book/first_steps/data_parallelism.html")
    definition = page.find_cell("class DataParallel")
    trains = page.find_cell("def learn(")

    # Run, before any kernel exists: the cells above run first, then one, two and four ranks train.
    output = page.run_and_wait(trains)
    assert "4 ranks · gloo · CPU" in output
    assert output.count("0.19955") == 3, "the same loss, to rounding"

    # Edit one line of the class that is shown: the ranks run what the page says now.
    page.edit(definition, 'all_reduce(local, op="avg")', 'all_reduce(local, op="sum")')
    assert page.state(definition) == "edited"
    page.run_and_wait(trains)
    *_, of_four = page.output(trains).split("4 ranks")
    assert "in the end" in of_four
    assert "0.199" not in of_four, "a sum is no average"

    # Reset, and kill a rank: the error names it.
    page.reset(definition)
    page.edit(
        trains,
        "    model = DataParallel(weights, group)",
        "    import os, signal\n"
        "    group.rank == 1 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "    model = DataParallel(weights, group)",
    )
    page.run_and_wait(trains, "failed")
    assert "rank 1 was killed by SIGKILL" in page.output(trains)

    # And the page goes on living.
    page.reset(trains)
    assert "in the end" in page.run_and_wait(trains)


@pytest.mark.slow
def test_killing_a_rank_from_outside_is_told_in_the_page(
    visit: Callable[..., LivePage], book: Server
) -> None:
    page = visit(book).open("book/first_steps/several_processes.html")
    cell = page.find_cell("def introduce")
    page.edit(cell, "    return group.rank**2", "    import time; time.sleep(600)")
    page.run(cell)
    page.wait_output(cell, "[rank 3] I am rank 3 of 4")
    lines = page.output(cell).splitlines()
    victim = next(int(line.split()[-1]) for line in lines if line.startswith("[rank 3]"))
    os.kill(victim, signal.SIGKILL)
    page.wait_state(cell, "failed")
    assert "rank 3 was killed by SIGKILL" in page.output(cell)


@pytest.mark.slow
def test_stop_ends_the_ranks(visit: Callable[..., LivePage], book: Server) -> None:
    page = visit(book).open("book/first_steps/several_processes.html")
    cell = page.find_cell("def introduce")
    page.edit(cell, "    return group.rank**2", "    import time; time.sleep(600)")
    page.run(cell)
    page.wait_output(cell, "[rank 3] I am rank 3 of 4")
    pids = [int(line.split()[-1]) for line in page.output(cell).splitlines() if "I am" in line]
    assert len(pids) == 4
    page.stop(cell)
    page.wait_state(cell, "stopped")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("path", EACH)
def test_a_page_reads_well_before_anything_runs(
    visit: Callable[..., LivePage], shelf: Server, path: str
) -> None:
    check_looks(visit(shelf, reduced_motion="reduce").open(path), path)


@pytest.mark.parametrize("paths", TOGETHER)
def test_every_live_cell_of_every_page_runs_in_the_browser(
    visit: Callable[..., LivePage], book: Server, paths: list[str]
) -> None:
    """Two readers at a time: half of what a page does is to wait. What a run puts out reads as
    well as the page did before."""
    pages = {path: visit(book, reduced_motion="reduce").open(path) for path in paths}
    for page in pages.values():
        page.page.set_default_timeout(180_000)
        if page.states():
            page.run_all()
    for path, page in pages.items():
        classes = page.page.locator("div.cell[data-live]").evaluate_all(
            "cells => cells.map((cell) => cell.className)"
        )
        for cell, names in enumerate(classes):
            meant_to_fail = "tag_raises-exception" in names.split()
            page.wait_state(cell, "failed" if meant_to_fail else "ran")
        check_looks(page, path, ran=True)


def check_looks(page: LivePage, path: str, ran: bool = False) -> None:
    """A page reads well by ear, at night, on a phone, in large letters, and is there soon."""
    weight = weight_before_a_press(page, ROOT / "_build/html")
    if ran:  # a chart's library is loaded for a reader who moves
        weight = {file: size for file, size in weight.items() if "/vega/" not in file}
    if path.startswith("search"):  # what it found, it opens one by one, for a line of each
        weight = {file: size for file, size in weight.items() if not file.startswith("book/")}
    assert sum(weight.values()) <= 640_000, sorted(weight.items(), key=lambda item: -item[1])
    assert not needs_scrolling_sideways(page)
    if ran and path in PICTURES:
        take_pictures(page, ROOT / "_build/screenshots", Path(path).stem, PICTURES[path])
    found = violations_in_both_themes(page)
    assert not found, "\n\n".join(found)


@pytest.mark.slow
def test_the_pages_that_no_author_writes_read_as_well(
    visit: Callable[..., LivePage], shelf: Server
) -> None:
    """The search, which asks no other host; the index; what a wrong address shows."""
    for path in ("search.html?q=bucket", "genindex.html", "py-modindex.html", "404.html"):
        page = visit(shelf, reduced_motion="reduce").open(path)
        if path.startswith("search"):
            page.page.locator("#search-results li").first.wait_for()
            found = page.page.locator("#search-results li a").all_inner_texts()
            assert "Buckets" in found
        check_looks(page, path)
    assert page.page.title() == "No such page · Data parallelism that runs"
