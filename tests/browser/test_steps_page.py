"""The figure of a recorded run: one step at a time, by button, slider and keyboard."""

import time
from collections.abc import Callable

import pytest
from live_page import LivePage
from playwright.sync_api import Locator, expect
from serving import Server


@pytest.fixture
def page(visit: Callable[..., LivePage], server: Server) -> LivePage:
    return visit(server).open("steps.html")


def stepper(page: LivePage) -> Locator:
    return page.page.locator(".steps-ready").first


def shown(page: LivePage) -> list[str]:
    return stepper(page).locator(".steps-caption").all_inner_texts()


def test_it_opens_at_its_beginning(page: LivePage) -> None:
    stepper(page).wait_for()
    assert shown(page)[0].startswith("Before step 1 of 4")
    assert stepper(page).get_by_role("slider", name="step").input_value() == "0"
    stepper(page).get_by_role("slider", name="step").fill("2")
    assert shown(page) == ["Step 2 of 4: 0 → 1, 1 → 2, 2 → 0. Receivers add what arrives."]
    assert stepper(page).locator(".steps-complete").count() == 3, "one part on each rank"


def test_one_step_is_shown_and_buttons_and_keys_change_it(page: LivePage) -> None:
    figure = stepper(page)
    figure.focus()
    page.page.keyboard.press("Home")
    assert len(shown(page)) == 1
    assert shown(page)[0].startswith("Before step 1 of 4")

    figure.get_by_role("button", name="one step forward").click()
    assert shown(page)[0] == "Step 1 of 4: 0 → 1, 1 → 2, 2 → 0. Receivers add what arrives."
    assert figure.locator("[aria-live]").inner_text() == shown(page)[0], "said, not only drawn"

    address = page.page.url
    figure.focus()
    for key, start in [("ArrowRight", "Step 2"), ("End", "Step 4"), ("ArrowLeft", "Step 3"),
                       ("Home", "Before")]:  # fmt: skip
        page.page.keyboard.press(key)
        assert shown(page)[0].startswith(start)
    assert page.page.url == address, "arrow keys do not turn the page here"
    assert figure.get_by_role("button", name="one step back").is_disabled()


def test_the_slider_goes_to_any_step_and_says_which(page: LivePage) -> None:
    slider = stepper(page).get_by_role("slider", name="step")
    slider.fill("3")
    assert "Receivers keep what arrives." in shown(page)[0]
    assert slider.get_attribute("aria-valuetext") == "step 3 of 4"
    slider.press("ArrowRight")
    assert shown(page)[0].startswith("Step 4 of 4")


def test_it_plays_only_when_asked_and_pauses(page: LivePage) -> None:
    figure, clock = stepper(page), page.page.clock
    figure.wait_for()
    clock.install()  # the page's seconds pass when we say so
    clock.pause_at(time.time() + 3600)
    clock.run_for(10_000)
    assert shown(page)[0].startswith("Before"), "nothing moves by itself"
    figure.get_by_role("button", name="play all steps").click()
    clock.run_for(1_000)
    assert shown(page)[0].startswith("Step 1")
    figure.get_by_role("button", name="pause").click()
    clock.run_for(10_000)
    assert shown(page)[0].startswith("Step 1")
    page.page.keyboard.press("Home")
    figure.focus()
    page.page.keyboard.press(" ")
    clock.run_for(10_000)
    assert shown(page)[0].startswith("Step 4")
    assert figure.get_by_role("button", name="play all steps").is_visible(), "it ends by itself"


def test_one_that_plays_does_so_once_when_it_comes_into_view(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server).open("steps.html")
    stepper(page).wait_for()
    page.page.clock.install()
    page.page.clock.pause_at(time.time() + 3600)
    figure = page.page.locator(".steps-ready").nth(1)
    caption = figure.locator(".steps-caption")
    page.page.clock.run_for(10_000)
    assert caption.inner_text().startswith("Before"), "it is further down"
    figure.scroll_into_view_if_needed()
    expect(figure.get_by_role("button", name="pause")).to_be_visible()
    page.page.clock.run_for(10_000)
    assert caption.inner_text().startswith("Step 2 of 2")
    page.page.mouse.wheel(0, -5000)
    figure.scroll_into_view_if_needed()
    page.page.clock.run_for(10_000)
    assert caption.inner_text().startswith("Step 2 of 2"), "once"


def test_it_does_not_play_for_readers_who_prefer_reduced_motion(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server, reduced_motion="reduce").open("steps.html")
    figure = page.page.locator(".steps-ready").nth(1)
    figure.scroll_into_view_if_needed()
    page.page.wait_for_timeout(500)
    assert figure.get_by_role("button", name="play all steps").is_visible()
    assert figure.locator(".steps-caption").inner_text().startswith("Before")


@pytest.mark.slow
def test_a_live_run_brings_a_figure_that_works_too(page: LivePage) -> None:
    cell = page.find_cell("record(ring")
    page.run_and_wait(cell)
    figure = page.cell(cell).locator(".live-output .steps-ready")
    figure.wait_for()
    figure.get_by_role("button", name="one step forward").click()
    assert "0 → 1, 1 → 2, 2 → 0" in figure.locator(".steps-caption").inner_text()


def test_another_number_of_ranks_is_another_recording(page: LivePage) -> None:
    figure = stepper(page)
    names = figure.locator("svg text", has_text="rank")
    assert names.all_text_contents() == ["rank 0", "rank 1", "rank 2"]
    figure.get_by_role("slider", name="step").fill("2")
    figure.get_by_role("slider", name="ranks").press("ArrowLeft")
    assert names.all_text_contents() == ["rank 0", "rank 1"]
    assert shown(page)[0].startswith("Step 1 of 2"), "half done there, too"
    figure.focus()
    page.page.keyboard.press("End")
    assert figure.locator(".steps-complete").count() == 4
    assert "sent 1.00 arrays" in shown(page)[0]


def test_a_partial_sum_is_hatched_and_a_complete_one_framed(page: LivePage) -> None:
    figure = stepper(page)
    figure.wait_for()
    hatched, complete = figure.locator("svg [mask]"), figure.locator(".steps-complete")
    figure.focus()
    page.page.keyboard.press("Home")
    assert (hatched.count(), complete.count()) == (9, 0), "nine cells, each with one rank's numbers"
    page.page.keyboard.press("End")
    assert (hatched.count(), complete.count()) == (0, 9)


def test_a_step_forward_is_seen_to_travel(page: LivePage) -> None:
    figure = stepper(page)
    figure.get_by_role("button", name="one step forward").click()
    cells = figure.locator(".steps-part")
    expect(cells).to_have_count(9 + 3)  # three messages are under way
    expect(cells).to_have_count(9)


def test_nobody_who_wants_calm_sees_motion(visit: Callable[..., LivePage], server: Server) -> None:
    calm = visit(server, reduced_motion="reduce").open("steps.html")
    stepper(calm).get_by_role("button", name="one step forward").click()
    assert stepper(calm).locator(".steps-part").count() == 9


def test_the_steps_stand_there_in_words_without_scripts_and_on_paper_as_the_picture_of_one(
    visit: Callable[..., LivePage], server: Server
) -> None:
    plain = visit(server, java_script_enabled=False).open("steps.html")
    assert plain.page.locator(".steps-words").first.locator("li:visible").count() == 5
    scripted = visit(server).open("steps.html")
    stepper(scripted).wait_for()
    assert scripted.page.locator(".steps-words li:visible").count() == 0
    scripted.page.emulate_media(media="print")
    assert scripted.page.locator(".steps-words li:visible").count() == 0
    assert stepper(scripted).locator("svg").is_visible()
    assert shown(scripted)[0].startswith("Step 2 of 4"), "and the picture is one of the middle"
