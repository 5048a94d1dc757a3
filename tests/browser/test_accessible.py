"""What axe finds on the pages, in both themes, before and after a run: nothing."""

import functools
from collections.abc import Callable

import pytest
from live_page import LivePage
from looks import BY_THEME, violations
from serving import Server

# Steps, calculators and tips stand on real pages, which test_chapters looks at.
PAGES = ["index", "plain", "cells", "ranks", "planner", "tracebacks"]
SOON = ["cells", "planner"]  # with most of what the others have


def check(live: LivePage) -> None:
    """In the theme of the system, as it stands for a reader who has chosen none: it changes."""
    found = []
    for theme, rules in (("light", None), ("dark", BY_THEME)):
        live.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        live.page.locator(f'html[data-theme="{theme}"]').wait_for(state="attached")
        found += [f"{theme}: {problem}" for problem in violations(live, rules)]
    assert not found, "\n\n".join(found)


@pytest.fixture
def visitor(visit: Callable[..., LivePage], server: Server) -> Callable[..., LivePage]:
    return functools.partial(visit, server, color_scheme="light", reduced_motion="reduce")


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=() if p in SOON else pytest.mark.slow) for p in PAGES]
)
def test_a_page_as_it_was_built(visitor: Callable[..., LivePage], page: str) -> None:
    live = visitor().open(f"{page}.html")
    live.page.wait_for_load_state()
    check(live)


@pytest.mark.slow
def test_a_page_in_which_all_has_run(visitor: Callable[..., LivePage]) -> None:
    live = visitor().open("cells.html")
    live.run_all()
    live.wait_state(len(live.states()) - 1, "ran")
    live.open_editor(0)
    live.page.keyboard.type("# edited")
    live.cell(0).locator(".live-changes").click()
    check(live)


def test_a_page_with_a_failure_a_stop_and_a_message(visitor: Callable[..., LivePage]) -> None:
    live = visitor().open("cells.html")
    live.edit(1, "return self.factor", "return 1 / 0 or self.factor")
    live.run(6)
    live.wait_state(6, "stopped")
    live.restart()
    live.wait_state(1, "lost")
    check(live)


@pytest.mark.slow
def test_the_columns_and_the_tabs_of_ranks(visitor: Callable[..., LivePage]) -> None:
    for width in (1280, 390):
        live = visitor(viewport={"width": width, "height": 800}).open("ranks.html")
        live.cell(0).locator(".ranks").first.wait_for()
        check(live)


def test_a_page_with_an_open_tip(visitor: Callable[..., LivePage]) -> None:
    live = visitor().open("tips.html")
    live.page.locator("a.term").first.hover()
    live.page.locator(".link-tip:visible").wait_for()
    check(live)
    assert live.page.locator(".link-tip:visible").count(), "it was there in both themes"
