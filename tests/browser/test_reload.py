"""An open page shows what was built meanwhile, where it was scrolled to, and leaves runs alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

from live_page import LivePage
from serving import running_server

from playground.build.dev import show, tell
from playground.serve import RAN, READY


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


def test_a_page_in_which_a_cell_ran_is_told_and_the_others_show_their_outputs(
    visit: Callable[..., LivePage], small_book: Path, tmp_path: Path
) -> None:
    html, shown = tmp_path / "html", tmp_path / "shown"
    shutil.copytree(small_book, html)
    show(html, shown, 1, "3 of 4 pages", keep=RAN)
    with running_server(shown) as server:
        reader = visit(server)
        used, other = reader.open("cells.html"), visit(server).open("cells.html")
        for live in (used, other):
            live.page.get_by_role("status").get_by_text("3 of 4 pages").wait_for()
        tell(shown, 1, "4 of 4 pages")
        used.page.get_by_text("4 of 4 pages").wait_for()
        assert used.run_and_wait(0) == "factor 2"
        page = html / "cells.html"
        page.write_text(page.read_text().replace("<h1>", "<h1>Executed: "))
        show(html, shown, 2, READY, last=True)
        other.page.locator("article h1", has_text="Executed: ").wait_for()
        assert other.page.locator(".book-news").count() == 0
        used.page.get_by_text(READY).wait_for()
        assert used.state(0) == "ran"
        assert used.page.locator("article h1", has_text="Executed: ").count() == 0
