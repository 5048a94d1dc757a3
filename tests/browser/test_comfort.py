"""Pages for slow lines, large letters, the keyboard, and eyes that do not like things to move."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from live_page import LivePage
from looks import weight_before_a_press
from serving import Server

BASE, DERIVED, PRODUCT, TICKS = range(4)


def test_a_page_loads_nothing_large_before_the_first_run(
    visit: Callable[..., LivePage], server: Server, small_book: Path
) -> None:
    """What the pages of the book weigh is tried in `test_chapters.py`."""
    live = visit(server).open("cells.html")
    live.page.wait_for_load_state("networkidle")
    assert len(weight_before_a_press(live, small_book)) > 10
    large = ("thebe/", "vega", "fontawesome")
    assert not [url for url in live.requests if any(part in url for part in large)]


def test_every_icon_of_a_page_is_in_the_small_font(
    small_book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "book/_ext"))
    used = set(importlib.import_module("icons").USED)
    for page in small_book.rglob("*.html"):
        for classes in re.findall(r'<i class="([^"]*fa-solid[^"]*)"', page.read_text()):
            names = {name.removeprefix("fa-") for name in classes.split() if name[:3] == "fa-"}
            assert names - {"solid", "lg"} <= used, page


@pytest.mark.slow
def test_nothing_moves_for_a_reader_who_wants_it_so(
    visit: Callable[..., LivePage], server: Server
) -> None:
    def moving(live: LivePage) -> list[str]:
        live.edit(TICKS, "0.01", "60")
        live.run(TICKS)
        live.wait_output(TICKS, "tick 0")
        names = live.page.evaluate(
            "document.getAnimations().map((a) => a.animationName ?? a.transitionProperty)"
        )
        live.stop(TICKS)
        live.wait_state(TICKS, "stopped")
        return names

    assert "live-pulse" in moving(visit(server, reduced_motion="no-preference").open("cells.html"))
    still = visit(server, reduced_motion="reduce").open("cells.html")
    assert moving(still) == []
    style = "(node, name) => getComputedStyle(node)[name]"
    output = still.cell(BASE).locator(".cell_output")
    assert output.evaluate(style, "transitionDuration") == "0s"
    assert still.page.locator("html").evaluate(style, "scrollBehavior") == "auto"


def test_the_keyboard_reaches_all_that_a_cell_offers(live: LivePage) -> None:
    live.edit(BASE, "factor = 2", "factor = 3")
    live.page.keyboard.press("Escape")
    seen = []
    for _ in range(6):
        seen.append(live.page.evaluate("document.activeElement.className"))
        live.page.keyboard.press("Tab")
    for name in ("live-run", "live-edit", "live-reset", "live-changes", "live-link"):
        assert any(name in classes for classes in seen), seen


def test_a_bar_of_progress_stays_one_line(live: LivePage) -> None:
    loop = 'for tick in range(3):\n    print("tick", tick, flush=True)'
    bar = "from tqdm import tqdm\nfor tick in tqdm(range(30), desc='bar', mininterval=0):"
    live.edit(TICKS, loop, bar)
    said = live.run_and_wait(TICKS)
    assert said.count("bar:") == 1, said
    assert "100%" in said
    assert "30/30" in said


def test_a_listing_is_copied_by_its_button(visit: Callable[..., LivePage], server: Server) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    live = visit(server, permissions=allowed).open("cells.html")
    live.cell(DERIVED).locator(".cell_input").hover()
    live.cell(DERIVED).locator(".copybtn").click()
    live.page.wait_for_function(
        "async code => (await navigator.clipboard.readText()).trim() === code",
        arg=live.code(DERIVED).strip(),
    )
