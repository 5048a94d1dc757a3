"""The output of several ranks: side by side where that helps, untouched where it does not."""

from collections.abc import Callable

import pytest
from live_page import LivePage
from serving import Server

TWO_BLOCKS, ONE_LINE_EACH, GROWING, IN_PIECES = range(4)


@pytest.fixture
def ranks(visit: Callable[..., LivePage], server: Server) -> LivePage:
    return visit(server).open("ranks.html")


def headings(page: LivePage, cell: int) -> list[str]:
    return page.cell(cell).locator(".rank-name:visible").all_inner_texts()


def test_a_built_block_reads_as_columns_in_the_order_of_ranks(ranks: LivePage) -> None:
    ranks.cell(TWO_BLOCKS).locator(".rank-columns").first.wait_for()
    assert headings(ranks, TWO_BLOCKS) == ["rank 0", "rank 1", "rank 2", "rank 3"] * 2
    columns = ranks.cell(TWO_BLOCKS).locator(".rank-columns .rank pre").all_inner_texts()
    expected = [
        [f"line {line} of {rank}" for line in range(n)] for n in (3, 4) for rank in range(4)
    ]
    assert [column.splitlines() for column in columns] == expected
    shown = ranks.output(TWO_BLOCKS)
    assert shown.index("4 ranks · gloo") < shown.index("between") < shown.index("the end")
    assert "[rank" not in shown


def test_a_line_each_stays_as_it_came(ranks: LivePage) -> None:
    ranks.cell(TWO_BLOCKS).locator(".rank-columns").first.wait_for()  # the script has looked
    assert ranks.cell(ONE_LINE_EACH).locator(".ranks").count() == 0
    assert ranks.output(ONE_LINE_EACH).splitlines()[1] == "[rank 1] line 0 of 1"


def test_lines_that_came_in_pieces_are_whole_in_the_built_page(ranks: LivePage) -> None:
    built = ranks.cell(IN_PIECES).locator(".cell_output pre").text_content()
    assert built == "[rank 0] line 0 of 0\n[rank 1] line 0 of 1\n"


def test_a_button_brings_back_the_lines_as_they_came(ranks: LivePage) -> None:
    cell = ranks.cell(TWO_BLOCKS)
    cell.get_by_role("button", name="in order").click()
    assert ranks.output(TWO_BLOCKS).count("[rank 2] line 1 of 2") == 2
    assert headings(ranks, TWO_BLOCKS) == []
    cell.get_by_role("button", name="by rank").click()
    assert len(headings(ranks, TWO_BLOCKS)) == 8


def test_a_narrow_page_has_tabs_that_the_arrow_keys_move(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server, viewport={"width": 390, "height": 800}).open("ranks.html")
    tablist = page.cell(TWO_BLOCKS).get_by_role("tablist").first
    tablist.get_by_role("tab", name="rank 2").click()
    panel = page.cell(TWO_BLOCKS).get_by_role("tabpanel").first
    assert panel.inner_text().splitlines() == [f"line {line} of 2" for line in range(3)]
    page.page.keyboard.press("ArrowRight")
    panel = page.cell(TWO_BLOCKS).get_by_role("tabpanel").first
    assert panel.inner_text().splitlines() == [f"line {line} of 3" for line in range(3)]
    assert tablist.get_by_role("tab", name="rank 3").get_attribute("aria-selected") == "true"
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.page.evaluate(fits), "nothing makes the page scroll sideways"


def test_live_output_is_grouped_as_it_grows_and_cleared_with_the_next_run(ranks: LivePage) -> None:
    ranks.run(GROWING)
    live = ranks.cell(GROWING).locator(".live-output")
    live.locator(".rank-columns").wait_for()
    ranks.wait_state(GROWING, "ran")
    live.get_by_text("line 0 of 3\n" * 5 + "line 0 of 3").wait_for()
    assert len(headings(ranks, GROWING)) == 4
    ranks.edit(GROWING, "range(6)", "range(1)")
    ranks.run(GROWING)
    ranks.wait_state(GROWING, "ran")
    live.locator(".ranks").wait_for(state="detached")
    assert ranks.output(GROWING).splitlines()[0] == "[rank 1] line 0 of 1"
