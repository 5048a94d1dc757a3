"""An open page shows what was built meanwhile, where it was scrolled to, and leaves runs alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from live_page import LivePage
from serving import running_server

from playground.build.dev import show


@pytest.mark.slow
def test_an_open_page_reloads_and_stays_where_it_was_scrolled_to(
    visit: Callable[..., LivePage], small_book: Path, tmp_path: Path
) -> None:
    html, shown = tmp_path / "html", tmp_path / "shown"
    shutil.copytree(small_book, html)
    show(html, shown, 1)
    with running_server(shown, ("--no-browser", "--no-spare")) as server:
        live = visit(server, viewport={"width": 900, "height": 400}).open("cells.html")
        live.page.wait_for_load_state("load")
        live.page.evaluate("scrollTo({ top: 300, behavior: 'instant' })")
        page = html / "cells.html"
        page.write_text(page.read_text().replace("<h1>", "<h1>Rebuilt: "))
        show(html, shown, 2)
        live.page.locator("article h1", has_text="Rebuilt: ").wait_for()
        for _ in range(100):  # the page's policy forbids `wait_for_function`
            if live.page.evaluate("scrollY") == 300:
                break
            live.page.wait_for_timeout(100)
        assert live.page.evaluate("scrollY") == 300
        assert live.run_and_wait(0) == "factor 2", "its cells are live"
