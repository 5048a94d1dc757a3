"""When a slow phone shows the text of a page for the first time.

The built book is on a web server that compresses, as static hosts do. The browser has a quarter
of this machine's speed and a slow mobile network (1.6 Mbit/s down, 150 ms a round trip), an empty
cache and a narrow window. The time is the browser's own: from the click to the first painted text.
The peer is the least that a page can be: a title and a line, in one file.
"""

import gzip
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser, sync_playwright

from bench.pairs import ROOT, compare
from playground.build.pdf import find_browser

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/browser")]  # a reader as the tests know it

from live_page import OPTIONS  # type: ignore[import-not-found]  # noqa: E402

PAGES = ["book/index", "book/first_steps/data_parallelism", "book/zero/zero3"]
LEAST = "least.html"
LEAST_PAGE = b"<!doctype html><title>Least</title><p>A line to read."
SLOWER = 4  # times
NETWORK = {"offline": False, "latency": 150, "downloadThroughput": 2e5, "uploadThroughput": 1e5}
FIRST_PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
  const [entry] = list.getEntriesByName("first-contentful-paint");
  if (entry) resolve(entry.startTime / 1e3);
}).observe({ type: "paint", buffered: true }))"""


@contextmanager
def compressing_server(folder: Path) -> Iterator[str]:
    @cache
    def compressed(path: Path) -> bytes:
        return gzip.compress(LEAST_PAGE if path.name == LEAST else path.read_bytes())

    class Pages(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = folder / unquote(urlsplit(self.path).path[1:])
            if not path.is_file() and path.name != LEAST:
                return self.send_error(404)
            body = compressed(path)
            self.send_response(200)
            self.send_header("Content-Type", guess_type(path.name)[0] or "text/plain")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A browser that closes during a request isn't an error."""

    server = Quiet(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def first_paint(browser: Browser, url: str) -> float:
    """Seconds until a new reader with a slow phone sees text."""
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        page = context.new_page()
        phone = context.new_cdp_session(page)
        phone.send("Network.emulateNetworkConditions", NETWORK)
        phone.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
        page.goto(url, wait_until="commit")
        return float(page.evaluate(FIRST_PAINT))


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    for page in PAGES:
        name = f"first_paint/{Path(page).name}"
        yield name, lambda quick, page=page, name=name: paint(name, f"{page}.html", quick)


def paint(name: str, page: str, quick: bool) -> dict[str, Any]:
    with (
        compressing_server(ROOT / "_build/html") as url,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS) as browser,
    ):
        return compare(
            name,
            lambda: first_paint(browser, f"{url}/{page}"),
            "the least page",
            lambda: first_paint(browser, f"{url}/{LEAST}"),
            pairs=1 if quick else 7,
        )
