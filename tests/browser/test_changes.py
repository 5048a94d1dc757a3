"""What a reader changed in a cell, line by line."""

from live_page import LivePage

BASE = 0


def test_changes_are_shown_line_by_line_until_reset(live: LivePage) -> None:
    cell = live.cell(BASE)
    button = cell.get_by_role("button", name="Changes")
    assert not button.is_visible()
    live.edit(BASE, "factor = 2", "factor = 3\n    other = 4")
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    diff = cell.locator(".live-diff")
    assert diff.inner_text().splitlines() == [
        "  class Base:",
        "-     factor = 2",
        "+     factor = 3",
        "+     other = 4",
        '  print("factor", Base.factor)',
    ]
    assert diff.locator("ins").count() == 2
    assert diff.locator("del").count() == 1
    live.edit(BASE, "    other = 4\n", "")
    assert diff.locator("ins").count() == 1  # it follows what is typed
    live.reset(BASE)
    assert not diff.is_visible()
    assert not button.is_visible()
