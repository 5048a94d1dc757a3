"""A browser for the tests, and a small book with the real extension and the real static files."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_page import OPTIONS, PATIENCE, LivePage
from plain import plain
from playwright.sync_api import Browser, expect, sync_playwright
from serving import Server, running_server

from playground.browser import find_browser, missing

ROOT = Path(__file__).parents[2]
PAGES = Path(__file__).parent / "book"
BUILT = "built"  # the file that says that the small book is complete

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our pages, built with what the real book brings beside its own: once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "small book" / "source"
    with open(shared / "small book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / BUILT).exists():
            build_small_book(folder)
            (folder / BUILT).touch()
    return folder / "_build" / "html"


def build_small_book(folder: Path) -> None:
    shutil.copytree(PAGES, folder)
    shutil.copytree(ROOT / "book" / "_ext", folder / "book" / "_ext")
    shutil.copytree(ROOT / "book" / "_static", folder / "book" / "_static")
    shutil.copy(ROOT / "_config.yml", folder)
    shutil.copy(ROOT / "book" / "references.bib", folder / "book")
    for name in ("book/web", "exercises"):
        (folder / name).symlink_to(ROOT / name)
    execute = ["playground.build.execute", "--root", ".", "--workers", "2"]
    for module in (execute, ["playground.build"]):
        command = [sys.executable, "-m", *module]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def server(small_book: Path) -> Iterator[Server]:
    with running_server(small_book) as server:
        yield server


@pytest.fixture(scope="session")
def static(small_book: Path) -> Iterator[SimpleNamespace]:
    """A server of files alone, of which a book in a folder is a part."""
    with plain(small_book.parent) as origin:
        yield SimpleNamespace(url=f"{origin}/{small_book.name}", origin=origin)


@contextmanager
def visits(browser: Browser) -> Iterator[Callable[..., LivePage]]:
    """`visit(server)` is a new reader: own cookies, own tab. Ends with: nothing went wrong."""
    contexts, pages = [], []

    def visit(server: Server, *, log_in: bool = True, **options) -> LivePage:
        context = browser.new_context(**options)
        contexts.append(context)
        live_page = LivePage(context.new_page(), server.url)
        pages.append(live_page)
        if log_in:
            context.request.get(server.open_url)  # sets the cookie, as the printed address does
        return live_page

    yield visit
    problems = [problem for live_page in pages for problem in live_page.problems]
    for live_page in pages:
        live_page.page.close()  # a page ends its kernel as it goes; a context takes it down
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., LivePage]]:
    """For readers of one test."""
    with visits(browser) as visit:
        yield visit


@pytest.fixture(scope="module")
def visit_of_all(browser: Browser) -> Iterator[Callable[..., LivePage]]:
    """For a reader whom all tests of a file share."""
    with visits(browser) as visit:
        yield visit


@pytest.fixture
def read(visit: Callable[..., LivePage], static: SimpleNamespace) -> Callable[..., LivePage]:
    """Opens a page of files, with the network cut."""

    def read(path: str, **options) -> LivePage:
        live = visit(static, log_in=False, reduced_motion="reduce", **options)
        live.page.route(
            lambda url: not url.startswith((static.origin, "blob:")), lambda route: route.abort()
        )
        return live.open(path)

    return read


@pytest.fixture
def live(visit: Callable[..., LivePage], server: Server) -> LivePage:
    """The page of small cells, open in a new tab; no kernel runs for it yet."""
    return visit(server).open("cells.html")
