"""What axe finds on the pages, in both themes, before and after a run: nothing."""

from collections.abc import Callable

import pytest
from live_page import LivePage
from looks import violations
from serving import Server

PAGES = ["index", "plain", "cells", "ranks", "steps", "calculators", "tracebacks", "tips"]


def check(live: LivePage) -> None:
    found = violations(live)
    assert not found, "\n\n".join(found)


@pytest.fixture(params=["light", "dark"])
def visit_in_theme(
    request: pytest.FixtureRequest, visit: Callable[..., LivePage], server: Server
) -> Callable[..., LivePage]:
    def visit_in_theme(**options) -> LivePage:
        # The theme of the system, as it stands for a reader who has chosen none.
        return visit(server, color_scheme=request.param, reduced_motion="reduce", **options)

    return visit_in_theme


@pytest.mark.parametrize("page", PAGES)
def test_a_page_as_it_was_built(visit_in_theme: Callable[..., LivePage], page: str) -> None:
    live = visit_in_theme().open(f"{page}.html")
    live.page.wait_for_load_state()
    check(live)


def test_a_page_in_which_all_has_run(visit_in_theme: Callable[..., LivePage]) -> None:
    live = visit_in_theme().open("cells.html")
    live.run_all()
    live.wait_state(len(live.states()) - 1, "ran")
    live.open_editor(0)
    live.page.keyboard.type("# edited")
    live.cell(0).locator(".live-changes").click()
    check(live)


def test_a_page_with_a_failure_a_stop_and_a_message(
    visit_in_theme: Callable[..., LivePage],
) -> None:
    live = visit_in_theme().open("cells.html")
    live.edit(1, "return self.factor", "return 1 / 0 or self.factor")
    live.run(6)
    live.wait_state(6, "stopped")
    live.restart()
    live.wait_state(1, "lost")
    check(live)


def test_the_columns_and_the_tabs_of_ranks(visit_in_theme: Callable[..., LivePage]) -> None:
    for width in (1280, 390):
        live = visit_in_theme(viewport={"width": width, "height": 800}).open("ranks.html")
        live.cell(0).locator(".ranks").first.wait_for()
        check(live)


def test_a_page_with_an_open_tip(visit_in_theme: Callable[..., LivePage]) -> None:
    live = visit_in_theme().open("tips.html")
    live.page.locator("a.term").first.hover()
    live.page.locator(".link-tip:visible").wait_for()
    check(live)
