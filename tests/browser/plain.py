"""Web servers without a kernel: `with serving(handler) as origin:`, `plain(folder)` of files."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class QuietPages(Quiet, SimpleHTTPRequestHandler):
    """Files of a folder."""


@contextmanager
def serving(handler) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def plain(folder: Path) -> AbstractContextManager[str]:
    return serving(partial(QuietPages, directory=str(folder)))
