"""Web servers without a kernel: `with serving(handler) as origin:`, `plain(folder)` of files."""

import ssl
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
def serving(handler, certificate: Path | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http{'s' * bool(certificate)}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def plain(folder: Path) -> AbstractContextManager[str]:
    return serving(partial(QuietPages, directory=str(folder)))
