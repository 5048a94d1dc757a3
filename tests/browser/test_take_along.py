"""What a reader takes from a page: a notebook, a script, the address of a cell."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from live_page import LivePage
from nbclient import NotebookClient
from serving import Server

ROOT = Path(__file__).parents[2]
TICKS = 3


def download(live: LivePage, name: str) -> Path:
    with live.page.expect_download() as started:
        live.page.get_by_role("link", name=name, exact=True).click()
    target = Path(started.value.path())
    return target.rename(target.with_name(started.value.suggested_filename))


@pytest.mark.slow
def test_the_notebook_of_a_page_runs_and_prints_what_the_page_shows(
    live: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = download(live, "notebook")
    assert file.name == "cells.ipynb"
    notebook = nbformat.read(file, as_version=4)
    assert "on the path" in notebook.cells[0].source
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "code"))
    NotebookClient(notebook, timeout=180).execute()
    printed = [
        "".join(output.text for output in cell.outputs if "text" in output)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    said = [text for text in printed if text]
    assert said[:3] == ["factor 2\n", "product 42\n", "this cell stays static\n"]
    assert said[-1] == "after the error\n"  # a cell that is there to fail stops nothing


def test_the_script_of_a_page_runs(live: LivePage) -> None:
    file = download(live, "script")
    assert file.name == "cells.py"
    env = os.environ | {"PYTHONPATH": str(ROOT / "code")}
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, env=env, timeout=60, check=True
    )
    assert done.stdout.startswith("factor 2\nproduct 42\n")
    assert done.stdout.endswith("after the error\n")
    assert "# This one prints nothing:" in file.read_text()


def test_a_cell_has_an_address_that_leads_to_it(
    visit: Callable[..., LivePage], server: Server, live: LivePage
) -> None:
    live.cell(TICKS).get_by_role("link", name="link to cell 4").click()
    assert live.page.url.endswith("/cells.html#cell-4")
    there = visit(server, viewport={"width": 800, "height": 500}).open("cells.html#cell-4")
    there.page.wait_for_function("scrollY > 0")
    top = there.cell(TICKS).evaluate("cell => cell.getBoundingClientRect().top")
    header = there.page.locator(".bd-header-article").bounding_box()
    assert header is not None
    assert header["y"] + header["height"] <= top < 500
