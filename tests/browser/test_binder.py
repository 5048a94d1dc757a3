"""Static pages and a Binder: a stand-in that speaks its protocol, and a real Jupyter server."""

import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from live_page import LivePage
from plain import Quiet, plain, serving

from playground.server.policy import with_policy


@dataclass
class Web:
    """Where pages come from in this test: no kernels are there."""

    url: str
    open_url: str


@dataclass
class Binder:
    """What the stand-in answers, and what it was asked."""

    url: str = ""
    answers: list[dict[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def pages(small_book: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The small book, in whose policy a Binder is, as in that of a book that names one."""
    folder = tmp_path_factory.mktemp("named") / "html"
    shutil.copytree(small_book, folder)
    page = folder / "cells.html"
    bare = re.sub(rb'<meta http-equiv="Content-Security-Policy"[^>]*>', b"", page.read_bytes())
    page.write_bytes(with_policy(bare, "http://127.0.0.1/"))
    with plain(folder) as url:
        yield Web(url, f"{url}/index.html")


@pytest.fixture(scope="module")
def machine() -> Iterator[dict[str, str]]:
    """A Jupyter server as a Binder starts one: for any origin, known by its token."""
    token = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        options = ["--port=0", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}",
                   f"--IdentityProvider.token={token}", "--ServerApp.allow_origin=*",
                   f"--ServerApp.info_file={folder}/info.json"]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options], stdout=log, stderr=log
        )
        url, until = "", time.monotonic() + 60
        while not url and time.monotonic() < until:
            log.seek(0)
            found = [word for word in log.read().split() if word.startswith("http://127.0.0.1")]
            url = found[0].split("?")[0].replace("/tree", "/").replace("/lab", "/") if found else ""
            time.sleep(0.1)
        while time.monotonic() < until:
            try:
                urlopen(f"{url}api/status?token={token}").close()
                break
            except URLError:
                time.sleep(0.1)
        yield {"url": url, "token": token}
        process.terminate()
        process.wait(20)


@pytest.fixture
def binder() -> Iterator[Binder]:
    told = Binder()

    class Events(Quiet):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            for answer in told.answers:
                self.wfile.write(f"data: {json.dumps(answer)}\n\n".encode())
                time.sleep(0.2)

    with serving(Events) as told.url:
        yield told


def open_with(visit: Callable[..., LivePage], pages: Web, binder: Binder | None) -> LivePage:
    page = visit(pages, log_in=False)
    if binder:  # also when the page is loaded again, as it is for the tab's ranks
        said = json.dumps({"url": binder.url, "repository": "owner/book", "ref": "main"})
        name_it = f"document.getElementById('live-status').dataset.binder = {json.dumps(said)}"
        page.page.add_init_script(f"addEventListener('DOMContentLoaded', () => {{ {name_it} }})")
    page.open("cells.html")
    page.edit(0, "class Base:", "import numpy\nclass Base:")  # which a tab has not got
    return page


STATIC = (
    r"status of 501|status of 404|request to another host: http://127\.0\.0\.1"  # is expected here
)


@pytest.mark.slow
def test_a_cell_of_a_static_page_runs_on_the_binders_machine(
    visit: Callable[..., LivePage], pages: Web, binder: Binder, machine: dict[str, str]
) -> None:
    binder.answers = [{"phase": "building", "message": "…"}, {"phase": "ready", **machine}]
    page = open_with(visit, pages, binder)
    page.edit(0, '"factor", Base.factor', '"computed:", Base.factor * 21')
    page.run(0)
    page.wait_output(0, "computed: 42")
    assert binder.asked == ["/build/gh/owner/book/main"]
    page.wait_status("ready")  # the output comes before the kernel says that it is done
    page.expect_problems(STATIC)


@pytest.mark.slow
def test_a_binder_that_fails_says_why_and_is_asked_again_at_the_next_press(
    visit: Callable[..., LivePage], pages: Web, binder: Binder
) -> None:
    binder.answers = [{"phase": "failed", "message": "no such repository"}]
    page = open_with(visit, pages, binder)
    for press in (1, 2):
        page.run(0)
        page.cell(0).locator(".live-message:visible").wait_for()
        assert "Binder gives no machine: no such repository" in page.message(0)
        assert len(binder.asked) >= press
    page.expect_problems(STATIC)


@pytest.mark.slow
def test_without_a_binder_a_static_page_says_how_to_run_it(
    visit: Callable[..., LivePage], pages: Web
) -> None:
    page = open_with(visit, pages, None)
    page.run(0)
    page.cell(0).locator(".live-message:visible").wait_for()
    assert "make serve" in page.message(0)
    assert not [url for url in page.requests if "/api/" in url]
