"""A site with a release beside the newest book: each page leads to the same page of the other."""

import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from live_page import LivePage
from playwright.sync_api import Locator
from test_binder import QuietPages, Web

from playground.versions import assemble

TAG = '<script defer src="_static/versions.js" data-version="{}" data-list="{}"></script></body>'


def switcher(live: LivePage) -> Locator:
    return live.page.get_by_role("combobox", name="Version", exact=True)


def book_of(pages: Path, to: Path, version: str, where: str) -> Path:
    """A built book as `BOOK_VERSION` makes it."""
    shutil.copytree(pages, to)
    for page in to.glob("*.html"):
        text = page.read_text().replace("</body>", TAG.format(version, where))
        page.write_text(text)
    return to


@pytest.fixture(scope="module")
def site(small_book: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("site")
    newest = book_of(small_book, folder / "newest", "newest", "versions.json")
    old = book_of(small_book, folder / "old", "v0.1", "../versions.json")
    (old / "plain.html").unlink()  # a page that came later
    with zipfile.ZipFile(folder / "v0.1.0.zip", "w") as pages:
        for path in old.rglob("*"):
            pages.write(path, path.relative_to(old))
    assert assemble(newest, folder, folder / "site/book") == ["v0.1"]
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(QuietPages, directory=str(folder / "site"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/book"
    yield Web(url, f"{url}/cells.html")
    server.shutdown()
    server.server_close()


def test_a_page_leads_to_the_same_page_of_another_version(
    visit: Callable[..., LivePage], site: Web
) -> None:
    live = visit(site, log_in=False).open("cells.html#cell-2")
    select = switcher(live)
    assert select.locator("option").all_inner_texts() == ["newest", "v0.1"]
    select.select_option("v0.1")
    live.page.wait_for_url("**/book/v0.1/cells.html#cell-2")
    assert switcher(live).input_value() == "v0.1/"
    switcher(live).select_option("newest")
    live.page.wait_for_url("**/book/cells.html#cell-2")


def test_a_page_that_a_version_lacks_leads_to_its_beginning(
    visit: Callable[..., LivePage], site: Web
) -> None:
    live = visit(site, log_in=False).open("plain.html")
    switcher(live).select_option("v0.1")
    live.page.wait_for_url("**/book/v0.1/")
    live.expect_problems("status of 404.*v0.1/plain.html")


def test_files_on_a_disk_offer_no_version_and_report_no_error(
    visit: Callable[..., LivePage], small_book: Path, tmp_path: Path
) -> None:
    alone = book_of(small_book, tmp_path / "alone", "v0.1", "../versions.json")
    live = visit(Web(alone.as_uri(), ""), log_in=False).open("plain.html")
    live.page.wait_for_load_state("load")
    assert switcher(live).count() == 0
