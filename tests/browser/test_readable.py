"""What a reader sees of code, figures and verdicts: nothing is tiny, covered, or cut silently."""

from collections.abc import Callable

import pytest
from live_page import LivePage
from serving import Server

BASE, DERIVED = range(2)


@pytest.mark.parametrize("width", [1280, 390])
def test_code_is_at_least_14_pixels(read: Callable[..., LivePage], width: int) -> None:
    for path in ("cells.html", "plain.html", "solving.html"):
        live = read(path, viewport={"width": width, "height": 800})
        sizes = live.page.locator(".bd-article pre").evaluate_all(
            "all => all.map((pre) => parseFloat(getComputedStyle(pre).fontSize))"
        )
        assert sizes
        assert min(sizes) >= 14, path


def test_a_line_of_100_characters_fits_next_to_both_side_bars(
    read: Callable[..., LivePage],
) -> None:
    live = read("cells.html", viewport={"width": 1280, "height": 800})
    listing = live.cell(BASE).locator(".cell_input pre")
    listing.evaluate("pre => { pre.textContent = 'x'.repeat(100) }")
    live.page.evaluate("document.fonts.load('14px \"Source Code Pro\"')")
    assert listing.evaluate("pre => pre.scrollWidth - pre.clientWidth") <= 0


def test_a_listing_that_is_cut_on_a_phone_has_a_dark_edge(read: Callable[..., LivePage]) -> None:
    for theme in ("light", "dark"):
        live = read("cells.html", viewport={"width": 390, "height": 800}, color_scheme=theme)
        listing = live.cell(DERIVED).locator(".cell_input pre")
        listing.evaluate("pre => { pre.textContent = 'x'.repeat(100) }")
        assert listing.evaluate("pre => pre.scrollWidth - pre.clientWidth") > 0
        edge = listing.evaluate("pre => getComputedStyle(pre).backgroundImage")
        assert edge.count("linear-gradient") == 2, "one moves with the code, and covers the other"
        stays = listing.evaluate("pre => getComputedStyle(pre).backgroundAttachment")
        assert stays.startswith("local, scroll")


def test_the_bar_of_a_cell_covers_no_code(read: Callable[..., LivePage]) -> None:
    live = read("cells.html", viewport={"width": 1280, "height": 300})
    cell = live.cell(DERIVED)
    cell.locator(".cell_input pre").evaluate("pre => { pre.textContent = 'x\\n'.repeat(50) }")
    cell.evaluate("cell => cell.scrollIntoView()")
    code, bar = (cell.locator(part).bounding_box() for part in (".cell_input", ".live-bar"))
    assert bar["y"] >= code["y"] + code["height"] - 2


def test_an_exercise_that_nobody_began_is_not_wrong(
    visit: Callable[..., LivePage], server: Server
) -> None:
    live = visit(server).open("solving.html")
    sign = live.cell(1).locator(".verdict > span >> visible=true")
    live.cell(1).locator(".verdict").first.wait_for()
    assert sign.count() == 0
    live.run_and_wait(1)
    assert sign.count() == 0, "the book's own code was checked"
    live.edit(1, "raise NotImplementedError", "return")
    live.run_and_wait(1)
    assert sign.all_inner_texts() == ["✗"]


def test_a_wide_figure_takes_the_width_of_the_code(
    visit: Callable[..., LivePage], server: Server
) -> None:
    live = visit(server, viewport={"width": 1280, "height": 800}).open("figures.html")

    def widths() -> list[float]:
        pictures = live.cell(0).locator(".cell_output img >> visible=true")
        pictures.last.evaluate("picture => picture.decode()")
        return [box["width"] for picture in pictures.all() if (box := picture.bounding_box())]

    wide, small = widths()
    code = live.cell(0).locator(".cell_input").bounding_box()["width"]
    assert code - 20 <= wide <= code
    assert small < 400
    live.run_and_wait(0)
    live.page.locator(".live-output img.wide").wait_for()
    assert widths() == pytest.approx([wide, small], abs=2), "of the reader's run, too"
