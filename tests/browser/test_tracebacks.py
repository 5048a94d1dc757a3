"""A traceback shows the frames that a reader can do something about, and folds the others."""

from collections.abc import Callable

import pytest
from live_page import LivePage
from serving import Server


@pytest.mark.parametrize("where", ["built", "ran here"])
def test_frames_of_libraries_are_folded_and_unfold(
    visit: Callable[..., LivePage], server: Server, where: str
) -> None:
    page = visit(server).open("tracebacks.html")
    if where == "ran here":
        page.run_and_wait(0, "failed")
    output = page.cell(0).locator(".cell_output")
    summary = output.locator("summary").locator("visible=true")
    summary.wait_for()
    assert summary.inner_text() == "3 more in Python and its libraries"
    shown = page.output(0)
    assert "Cell In[" in shown
    assert 'json.loads("{")' in shown
    assert shown.endswith("line 1 column 2 (char 1)")
    assert "raw_decode" not in shown
    summary.focus()
    page.page.keyboard.press("Enter")
    shown = page.output(0)
    assert shown.count("Cell In[") == 1
    assert "raw_decode" in shown


def test_a_traceback_of_cells_alone_stays_as_it_is(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server).open("cells.html")
    page.run_and_wait(5, "failed")
    assert page.cell(5).locator(".traceback-folded").count() == 0
    assert page.output(5).count("ZeroDivisionError: division by zero") == 1
