"""The box beside a term or a citation: for pointers, for the keyboard, for fingers, on paper."""

from collections.abc import Callable

import pytest
from live_page import LivePage
from playwright.sync_api import Locator, expect
from serving import Server

RANK = "One process of several that train together, & its number."


def tip(live: LivePage) -> Locator:
    return live.page.locator(".link-tip:visible")


def link(live: LivePage, text: str) -> Locator:
    return live.page.locator("main").get_by_role("link", name=text, exact=True)


@pytest.fixture
def page(visit: Callable[..., LivePage], server: Server) -> LivePage:
    return visit(server).open("tips.html")


def test_a_pointer_on_a_term_shows_what_it_means_and_asks_nothing_of_the_network(
    page: LivePage,
) -> None:
    page.page.wait_for_load_state("networkidle")
    before = len(page.requests)
    assert tip(page).count() == 0
    link(page, "rank").hover()
    expect(tip(page)).to_contain_text(RANK)
    expect(tip(page)).to_have_role("tooltip")
    link(page, "all-reduce").hover()
    expect(tip(page)).to_contain_text("After it every rank has the sum of all ranks’ arrays.")
    expect(tip(page)).not_to_contain_text("See")
    assert len(page.requests) == before
    page.page.mouse.move(5, 5)
    expect(tip(page)).to_have_count(0)


def test_the_pointer_can_go_into_the_box_and_follow_its_links(page: LivePage) -> None:
    link(page, "all-reduce").hover()
    expect(tip(page)).to_be_visible()
    tip(page).hover()
    page.page.wait_for_timeout(600)
    expect(tip(page).get_by_role("link")).to_have_text(["Glossary", "A page with cells"])
    tip(page).get_by_text("Glossary").click()
    assert page.page.url.endswith("/words.html#term-all-reduce")
    assert page.page.locator("a.term").count() == 0  # the definitions stand there


def test_the_keyboard_shows_a_tip_and_escape_closes_it(page: LivePage) -> None:
    link(page, "rank").evaluate("link => link.focus()")
    page.page.keyboard.press("Shift+Tab")
    page.page.keyboard.press("Tab")
    expect(link(page, "rank")).to_be_focused()
    expect(tip(page)).to_contain_text(RANK)
    expect(link(page, "rank")).to_have_accessible_description(RANK)
    page.page.keyboard.press("Escape")
    expect(tip(page)).to_have_count(0)
    expect(link(page, "rank")).to_be_focused()
    page.page.keyboard.press("Tab")
    expect(link(page, "all-reduce")).to_be_focused()  # and not a link in a box
    expect(tip(page)).to_contain_text("After it")


def test_a_finger_shows_the_tip_first_and_then_follows_the_link(
    visit: Callable[..., LivePage], server: Server
) -> None:
    phone = {"width": 390, "height": 800}
    page = visit(server, has_touch=True, is_mobile=True, viewport=phone).open("tips.html")
    link(page, "rank").tap()
    expect(tip(page)).to_contain_text(RANK)
    box = tip(page).bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.page.get_by_role("heading", name="Terms and papers").tap()
    expect(tip(page)).to_have_count(0)
    link(page, "rank").tap()
    link(page, "rank").tap()
    page.page.wait_for_url("**/words.html#term-rank")


def test_a_citation_shows_its_paper(page: LivePage) -> None:
    expect(link(page, "Young (1974)")).to_be_visible()
    link(page, "Goyal et al., 2017, §2").hover()
    expect(tip(page)).to_contain_text("Accurate, large minibatch SGD")
    tip(page).get_by_text("Bibliography").click()
    assert page.page.url.endswith("/words.html#goyal2017")
    entry = page.page.locator("#goyal2017")
    expect(entry).to_contain_text("Goyal et al. 2017")
    expect(entry).to_contain_text("Cited in Terms and papers.")


def test_a_link_to_code_has_no_tip(page: LivePage) -> None:
    assert "has-tip" not in (link(page, "average()").get_attribute("class") or "")


@pytest.mark.slow
def test_a_tip_has_room_at_the_lower_edge_of_the_window(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server, viewport={"width": 900, "height": 300}).open("tips.html")
    term = link(page, "checkpoint")
    term.evaluate("link => scrollBy(0, link.getBoundingClientRect().bottom - innerHeight + 4)")
    term.hover()
    expect(tip(page)).to_be_visible()
    box, place = tip(page).bounding_box(), term.bounding_box()
    assert box is not None
    assert place is not None
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= place["y"]


@pytest.mark.slow
def test_paper_and_a_page_without_scripts_show_no_tips(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server).open("tips.html")
    link(page, "rank").hover()
    expect(tip(page)).to_be_visible()
    page.page.emulate_media(media="print")
    expect(tip(page)).to_have_count(0)
    still = visit(server, java_script_enabled=False).open("tips.html")
    expect(tip(still)).to_have_count(0)
    expect(link(still, "rank")).to_have_attribute("href", "words.html#term-rank")
