"""Exercises in a page: Check, verdicts, hints, the solution, and what the browser remembers."""

import json
from collections.abc import Callable

import pytest
from live_page import LivePage
from playwright.sync_api import Locator
from serving import Server

from playground.exercises import FOLDER, names

STARTER, WRONG = 1, 2  # cells of the page


@pytest.fixture
def page(visit: Callable[..., LivePage], server: Server) -> LivePage:
    return visit(server).open("solving.html")


def solved(page: LivePage) -> dict[str, str]:
    return json.loads(page.page.evaluate("localStorage.getItem('solved exercises') ?? '{}'"))


def test_a_reader_fails_is_told_why_solves_it_and_it_is_remembered(page: LivePage) -> None:
    button = page.cell(STARTER).locator(".live-run-label")
    assert button.inner_text() == "Check"
    assert "Nothing is here yet" in page.output(STARTER), "the starter's verdict, from the build"

    assert "what rank" in page.run_and_wait(WRONG)
    assert page.state(0) == page.state(STARTER) == "built", "an exercise needs no cell above it"
    assert solved(page) == {}

    starter, solution = (
        (FOLDER / "ring_all_reduce" / f"{name}.py").read_text() for name in ("starter", "solution")
    )
    page.edit(STARTER, starter.rstrip("\n"), solution.rstrip("\n"))
    assert "Right: all sums" in page.run_and_wait(STARTER)
    assert button.inner_text() == "Check"
    page.page.wait_for_function("localStorage.getItem('solved exercises')?.includes('ring')")
    assert list(solved(page)) == ["ring_all_reduce"]
    page.page.get_by_text(f"1 of {len(names())} solved").wait_for()
    assert page.state(WRONG) == "ran", "nor does it change what stands below"


FOCUS = """() => {
  const node = document.activeElement.closest(".CodeMirror") ?? document.activeElement;
  const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(node);
  const isSeen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1
    || boxShadow !== "none" && !boxShadow.endsWith("0px 0px 0px 0px");
  return isSeen ? "" : node.outerHTML.slice(0, 200);
}"""


def go_to(page: LivePage, target: Locator, key: str = "Tab") -> None:
    """Press a key until the target has the focus, which is to be seen wherever it goes."""
    for _ in range(40):
        page.page.keyboard.press(key)
        assert page.page.evaluate(FOCUS) == "", "the focus is not to be seen here"
        if target.evaluate("target => target === document.activeElement"):
            return
    pytest.fail(f"{key} does not lead to {target}")


@pytest.mark.slow
def test_an_exercise_is_solved_with_the_keyboard_alone(page: LivePage) -> None:
    press, cell = page.page.keyboard.press, page.cell(STARTER)
    starter = page.code(STARTER)
    go_to(page, page.page.locator(".skip-link a"))
    press("Enter")
    go_to(page, cell.locator(".live-edit"))
    press("Enter")
    cell.locator(".CodeMirror-focused").wait_for()
    press("Control+A")
    page.page.keyboard.insert_text((FOLDER / "ring_all_reduce/solution.py").read_text())
    press("Shift+Enter")
    page.wait_state(STARTER, "ran")
    assert "Right: all sums" in page.output(STARTER)
    assert page.page.locator(".live-announce").inner_text().startswith("cell 2: ran here")
    assert page.page.evaluate(FOCUS) == ""

    press("Escape")
    for kind in ("hint", "solution"):
        folded = page.page.locator(f".exercise-{kind}").first
        go_to(page, folded.locator("summary"))
        press("Enter")
        assert folded.locator(":is(p, pre)").first.is_visible()

    go_to(page, cell.locator(".live-reset"), "Shift+Tab")
    press("Enter")
    assert page.state(STARTER) == "built"
    assert page.code(STARTER) == starter
    assert page.page.evaluate(FOCUS) == ""


def test_hints_come_one_by_one_and_the_solution_is_the_tested_file(page: LivePage) -> None:
    hints = page.page.locator(".exercise-hint")
    assert hints.locator("summary").all_inner_texts() == ["Hint 1", "Hint 2", "Hint 3"]
    assert not hints.first.locator("p").is_visible()
    hints.first.locator("summary").click()
    assert hints.first.locator("p").is_visible()
    assert not hints.nth(1).locator("p").is_visible()
    solution = page.page.locator(".exercise-solution")
    solution.locator("summary").click()
    shown = solution.locator("pre").inner_text().strip()
    assert shown == (FOLDER / "ring_all_reduce/solution.py").read_text().strip()


def test_a_question_folds_and_links_to_the_cell_that_proves_it(page: LivePage) -> None:
    card = page.page.locator(".exercise-question")
    answer = card.get_by_text("Once to add, once to copy.")
    assert not answer.is_visible()
    card.locator("summary").press("Enter")
    assert answer.is_visible()
    assert "Must mention: reduce-scatter, all-gather" in card.inner_text()
    link = card.get_by_role("link", name="Where it is shown")
    assert link.get_attribute("href") == "cells.html#cell-2"


FOLDED = "details[class^='exercise-']"


def test_hints_solutions_and_answers_are_open_in_print(page: LivePage) -> None:
    folds = page.page.locator(FOLDED)
    assert folds.count() == 5
    page.page.emulate_media(media="print")
    heights = "folds => folds.map(fold => fold.getBoundingClientRect().height)"
    summaries = page.page.locator(f"{FOLDED} > summary").evaluate_all(heights)
    for height, summary in zip(folds.evaluate_all(heights), summaries, strict=True):
        assert height > 2 * summary > 0  # by style alone
    is_open = "folds => folds.map(fold => fold.open)"
    folds.first.evaluate("fold => fold.open = true")
    for event, expected in (("beforeprint", [True] * 5), ("afterprint", [True] + [False] * 4)):
        page.page.evaluate(f"dispatchEvent(new Event('{event}'))")  # for browsers that need it
        assert folds.evaluate_all(is_open) == expected


def test_the_count_is_of_this_books_exercises(page: LivePage) -> None:
    kept = json.dumps({"shard_rows": "2026-01-01", "of_another_book": "2026-01-01"})
    page.page.evaluate("kept => localStorage.setItem('solved exercises', kept)", kept)
    page.open("solving.html")
    count = page.page.locator(".exercise-count")
    assert count.inner_text() == f"1 of {len(names())} solved"
