"""A page on another port, open in the browser of a reader whose cookies it could use.

For cookies all ports of a machine are one site: the browser sends the reader's along. What keeps
the other page out must be the server. Each attempt is also made by the book's own page, where it
must succeed: else it would prove nothing.
"""

import sys
from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from live_page import LivePage
from plain import Quiet, serving
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page
from serving import Server, running_server
from visitor import Browser, Kernel

BASE = 0


class Hostile(Quiet):
    """The server of another user of this machine, who keeps what browsers send."""

    received: list[str]  # Cookie headers

    def do_GET(self) -> None:
        self.received.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>hostile</title><p>hostile")


@pytest.fixture
def hostile_url() -> Iterator[str]:
    Hostile.received = []
    with serving(Hostile) as origin:
        yield f"{origin}/"


@pytest.fixture(scope="module")
def reader(visit_of_all: Callable[..., LivePage], server: Server) -> LivePage:
    """A reader with a kernel, whom nothing here may harm: all tests share it."""
    live = visit_of_all(server).open("cells.html")
    live.run_and_wait(BASE)
    return live


@pytest.fixture
def hostile(reader: LivePage, hostile_url: str) -> Iterator[Page]:
    page = reader.page.context.new_page()
    page.goto(hostile_url)
    yield page
    page.close()


def kernel_of(reader: LivePage) -> str:
    sessions = reader.ask_server("GET", "sessions")
    assert isinstance(sessions, list)
    return sessions[-1]["kernel"]["id"]


def what_runs(server: Server, cookies: dict[str, str]) -> str:
    """What somebody's code prints who has these cookies, and needs no browser to send them."""
    thief = Browser(server, cookies)
    status, _ = thief.api("GET", "/api/kernels")
    if status != 200:
        return f"refused: {status}"
    kernel = Kernel(thief)
    printed = kernel.run("print(6 * 7)")
    kernel.socket.close()
    return printed


def test_what_it_receives_from_a_browser_runs_no_code(
    reader: LivePage, hostile: Page, hostile_url: str, server: Server
) -> None:
    for path in ("book/", "cells.html", "api/kernels", "login"):  # where cookies may belong to
        hostile.goto(f"{hostile_url}{path}")
    kept = {cookie["name"]: cookie["value"] for cookie in reader.page.context.cookies()}
    assert what_runs(server, kept) == "42"
    received = [SimpleCookie(header) for header in Hostile.received]
    sent = {name: cookie.value for cookies in received for name, cookie in cookies.items()}
    assert what_runs(server, sent) == "refused: 403"


READ = """async (url) => {
  try {
    const answer = await fetch(url, { credentials: "include" });
    return answer.ok ? "read" : `status ${answer.status}`;
  } catch { return "refused"; }
}"""


@pytest.mark.parametrize("path", ["cells.html", "api/kernels", "api/sessions", "searchindex.js"])
def test_it_reads_nothing(reader: LivePage, hostile: Page, path: str) -> None:
    url = f"{reader.url}/{path}"
    assert reader.page.evaluate(READ, url) == "read"
    assert hostile.evaluate(READ, url) == "refused"


LOAD = """([kind, url]) => new Promise((resolve) => {
  const node = document.createElement(kind);
  node.onload = () => resolve("loaded");
  node.onerror = () => resolve("refused");
  node.src = url;
  document.head.append(node);
})"""


@pytest.mark.parametrize(
    ("kind", "path"), [("script", "_static/clipboard.min.js"), ("img", "favicon.ico")]
)
def test_it_loads_no_file_as_its_own(reader: LivePage, hostile: Page, kind: str, path: str) -> None:
    url = f"{reader.url}/{path}"
    assert reader.page.evaluate(LOAD, [kind, url]) == "loaded"
    assert hostile.evaluate(LOAD, [kind, url]) == "refused"


SESSION = '{"path": "x", "name": "x", "type": "notebook", "kernel": {"name": "python3"}}'
POST = """async ([url, body]) => {
  // what a browser sends without asking first: no header of ours, a form's kind of body
  const request = { method: "POST", credentials: "include", mode: "no-cors", body };
  await fetch(url, request).catch(() => {});
  const form = document.createElement("form");
  form.method = "post"; form.action = url; form.enctype = "text/plain"; form.target = "sink";
  const field = document.createElement("input");
  field.name = body; field.value = "";
  form.append(field);
  const sink = Object.assign(document.createElement("iframe"), { name: "sink" });
  document.body.append(sink, form);
  form.submit();
}"""


def test_it_starts_nothing(reader: LivePage, hostile: Page) -> None:
    before = reader.ask_server("GET", "sessions"), reader.ask_server("GET", "kernels")
    answers: list[int] = []
    hostile.on("response", lambda answer: answers.append(answer.status))
    for path in ("api/sessions", "api/kernels"):
        of_form = lambda answer: answer.request.is_navigation_request()  # noqa: E731
        with hostile.expect_response(of_form):
            hostile.evaluate(POST, [f"{reader.url}/{path}", SESSION])
    after = reader.ask_server("GET", "sessions"), reader.ask_server("GET", "kernels")
    names = [[item["id"] for item in items] for items in (*before, *after)]
    assert names[:2] == names[2:]
    assert answers
    assert set(answers) <= {403, 404}


OPEN = """(url) => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onopen = () => { socket.close(); resolve("open"); };
  socket.onerror = () => resolve("refused");
})"""


def test_it_speaks_to_no_kernel(reader: LivePage, hostile: Page) -> None:
    url = f"{reader.url}/api/kernels/{kernel_of(reader)}/channels".replace("http:", "ws:")
    assert reader.page.evaluate(OPEN, url) == "open"
    assert hostile.evaluate(OPEN, url) == "refused"


def test_it_shows_no_page_in_a_frame(reader: LivePage, hostile: Page) -> None:
    hostile.evaluate(
        """(src) => new Promise((resolve) => {
             const frame = document.createElement("iframe");
             frame.onload = resolve;
             frame.src = src;
             document.body.append(frame);
           })""",
        f"{reader.url}/cells.html",
    )
    assert [frame.url for frame in hostile.frames[1:]] == ["chrome-error://chromewebdata/"]


def test_a_window_that_it_opens_is_out_of_its_reach(reader: LivePage, hostile: Page) -> None:
    with hostile.context.expect_page() as opened:
        hostile.evaluate("(url) => { window.book = window.open(url); }", f"{reader.url}/cells.html")
    opened.value.wait_for_load_state()
    assert "A page with cells" in opened.value.title()  # the cookies are sent with a link
    hostile.wait_for_function("window.book.closed")  # as it looks from there
    assert opened.value.evaluate("window.opener") is None


# --- who served this port before --------------------------------------------------------------


class Former(Quiet):
    """A server that leaves a service worker behind, which answers for it when it is gone."""

    page = b"""<!doctype html><title>former</title>
<script>navigator.serviceWorker.register("/worker.js", { scope: "/" })</script>"""
    worker = b"""
oninstall = () => skipWaiting();
onactivate = (event) => event.waitUntil(clients.claim());
onfetch = (event) => event.respondWith(new Response("<title>the former server sees all</title>",
  { headers: { "Content-Type": "text/html" } }));
"""

    def do_GET(self) -> None:
        is_worker = self.path == "/worker.js"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if is_worker else "text/html")
        self.end_headers()
        self.wfile.write(self.worker if is_worker else self.page)


@pytest.fixture
def squatted(browser: Chromium) -> Iterator[tuple[Page, int]]:
    """A reader who has been to a server that left a worker behind, and the port of that."""
    page = browser.new_page()
    with serving(Former) as origin:
        page.goto(f"{origin}/")
        page.wait_for_function("navigator.serviceWorker.controller")
    yield page, urlsplit(origin).port
    page.close()


@pytest.mark.skipif(sys.platform == "darwin", reason="Safari knows no name below localhost")
@pytest.mark.slow
def test_a_worker_that_another_server_left_on_the_port_sees_nothing_of_the_book(
    squatted: tuple[Page, int], small_book: Path
) -> None:
    page, port = squatted
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).netloc))
    with running_server(small_book, port=port) as server:
        page.goto(f"http://127.0.0.1:{port}{server.prefix}/cells.html")
        assert page.title() == "the former server sees all"  # a secret path alone is not enough
        asked.clear()
        page.goto(server.printed_url)
        page.goto(page.url + "cells.html")
        assert "A page with cells" in page.title()
        assert page.evaluate("navigator.serviceWorker.controller") is None
        assert set(asked) == {urlsplit(server.printed_url).netloc}
        live = LivePage(page, page.url.removesuffix("/cells.html"))
        live.run_and_wait(BASE)  # the kernel is reached by this name too


# --- what a page of the book may do itself ------------------------------------------------------


def test_a_page_runs_no_script_that_was_not_built_into_it(
    visit: Callable[..., LivePage], server: Server, hostile_url: str
) -> None:
    live = visit(server).open("cells.html")
    live.page.evaluate(
        """(url) => new Promise((resolve) => {
             const inline = document.createElement("script");
             inline.textContent = "window.injected = true";
             document.head.append(inline);
             document.body.insertAdjacentHTML("beforeend", "<b onclick='injected = true'>");
             document.body.lastChild.click();
             setTimeout("window.injected = true");
             const other = document.createElement("script");
             other.onerror = () => setTimeout(resolve, 50);
             other.src = url;
             document.head.append(other);
           })""",
        hostile_url,
    )
    assert live.page.evaluate("window.injected") is None
    assert live.page.evaluate("window.scriptRuns") == 1  # one that was built into it
    live.expect_problems("Content Security Policy|violates|another host")


def test_a_page_sends_nothing_to_another_server(
    visit: Callable[..., LivePage], server: Server, hostile_url: str
) -> None:
    live = visit(server).open("cells.html")
    assert live.page.evaluate(READ, hostile_url) == "refused"
    assert live.page.evaluate(LOAD, ["img", hostile_url]) == "refused"
    assert live.page.evaluate(OPEN, hostile_url.replace("http:", "ws:")) == "refused"
    live.expect_problems("Content Security Policy|violates|another host")
