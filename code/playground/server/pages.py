"""Pages of the book: who may read them, and what the browser may do with them."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router

from playground.server.kernels import FewKernels
from playground.server.policy import COMPILE, hashes_of, policy

SECRETS = {"token", "ticket"}  # names of secrets in an address

# Replace Jupyter's pages, which load public files and contain the token.
PAGES = {
    "login.html": """<!doctype html><html lang="en"><title>Open the book</title>
<body style="font: 1.1em/1.5 system-ui; max-width: 34em; margin: 4em auto; padding: 0 1em">
<h1>Open the book</h1><p>The cells of this book run on this computer, so the server asks who you
are. Open the address that it printed when it started, or paste the token from it here.</p>
<form method="post" action="login?next={{ next }}">{{ xsrf_form_html() | safe }}
<label>Token <input type="password" name="password" autofocus></label> <button>Open</button></form>
<p role="alert">{{ message.error if message }}</p></body></html>""",
    "error.html": """<!doctype html><html lang="en"><title>{{ status_code }}</title>
<h1>{{ status_code }} {{ status_message }}</h1>
<p><a href="{{ base_url }}">To the book</a></p></html>""",
}

OUTSIDE = """<!doctype html><html lang="en"><title>Not the book</title>
<body style="font: 1.1em/1.5 system-ui; max-width: 34em; margin: 4em auto; padding: 0 1em">
<h1>The book is not here</h1><p>It is at the address that its server printed when it started. That
address is long, so that other users of this computer can't guess it.</p></html>"""

# For the login page and errors, which have a form and no script.
FORM_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# A page on another port of this machine counts as the "same site" for cookies. These keep it from
# loading our files as its scripts or pictures, and from controlling a window that it opened.
HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": FORM_POLICY,  # for everything but the book's own pages
}


def header(host: str, scripts: tuple[str, ...] = ()) -> str:
    """The policy of a page. `host` has passed Jupyter's check, so it is this machine."""
    older_safari = (f"ws://{host}",)  # where 'self' doesn't include it
    frames = {"frame-ancestors": ("'none'",)}
    return policy({"script-src": scripts, "connect-src": older_safari} | frames)


@lru_cache(maxsize=256)
def scripts_in(page: Path, changed_at: int) -> tuple[str, ...]:
    """Hashes of the inline scripts of a built page."""
    return hashes_of(page.read_bytes())


@lru_cache(maxsize=256)
def has_cells(page: Path, changed_at: int) -> bool:
    """Whether this is a built page with live cells."""
    return page.suffix == ".html" and b" data-live" in page.read_bytes()


class Entrance(Router):
    """Removes secrets from the address of a request before a log or the login page can show them.

    They remain in the request's arguments, where the login looks for them.
    """

    def __init__(self, app: web.Application) -> None:
        self.app = app

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        if SECRETS & request.query_arguments.keys():
            query = parse_qsl(request.query, keep_blank_values=True, encoding="latin1")
            rest = [(name, value) for name, value in query if name not in SECRETS]
            request.query = urlencode(rest, encoding="latin1")
            request.uri = request.path + ("?" + request.query if rest else "")
        return self.app.find_handler(request, **kwargs)


class Outside(web.RequestHandler):
    """Answers requests outside the book's path, without revealing that path.

    An error page of Jupyter's would reveal it, because it sets a cookie that names the path.
    """

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def initialize(self, book: str) -> None:
        self.book = book  # the full address of the book

    @allow_unauthenticated
    def get(self) -> None:
        ticket = self.get_query_argument("ticket", "")
        if self.request.path == "/" and self.settings["identity_provider"].is_valid(ticket):
            return self.redirect(f"{self.book}?ticket={ticket}")
        self.set_status(404)
        self.finish(OUTSIDE)

    head = get


class RunsCells(JupyterHandler):
    """Tells a page that this server runs cells; a host of files sends the build's file, with a no.

    It also answers a browser that isn't logged in, so that the page can say how to log in.
    """

    @allow_unauthenticated
    def get(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.finish({"runsCells": True})


class BookPages(JupyterHandler, web.StaticFileHandler):
    """Files of the built book, for a reader who is logged in."""

    @property
    def content_security_policy(self) -> str:
        return header(self.request.host)

    @web.authenticated
    def head(self, path: str) -> Any:  # type: ignore[override]
        return self.get(path, include_body=False)

    @web.authenticated
    async def get(  # type: ignore[override]
        self, path: str, include_body: bool = True
    ) -> None:
        # Tornado keeps `..` and symlinks inside the folder; refuse hidden files and odd names.
        *folders, name = path.split("/")
        odd = any(part.startswith(".") or set(part) & {"\0", "\\"} for part in (*folders, name))
        if odd or "" in folders:
            raise web.HTTPError(404)
        if SECRETS & self.request.query_arguments.keys():
            # The cookie is set now: keep the secret out of history, bookmarks and copied links.
            rest = self.request.query
            return self.redirect(self.base_url + quote(path) + ("?" + rest if rest else ""))
        _ = self.xsrf_token  # reading it sets the cookie that the page's POSTs must return
        await super().get(path, include_body)
        self.prewarm_for_reader()

    def prewarm_for_reader(self) -> None:
        """Start a kernel when the reader opens a page with cells.

        To open means by typing an address, by a bookmark, or by a link within the book. A request
        from another site's page doesn't start a kernel.
        """
        is_opened = self.request.headers.get("Sec-Fetch-Site") in ("none", "same-origin")
        if self.settings["spare"] and is_opened and has_cells(*self.file()):
            cast(FewKernels, self.kernel_manager).prewarm()

    def file(self) -> tuple[Path, int]:
        """The requested file, and when it was changed (ns)."""
        path = Path(self.absolute_path or "")
        return path, path.stat().st_mtime_ns

    def get_content_type(self) -> str:
        kind = super().get_content_type()
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

    def get_cache_time(self, *args: Any) -> int:
        return 0

    def set_extra_headers(self, path: str) -> None:
        # The browser asks every time (a 304 costs little on one machine), so it sees a rebuild.
        self.set_header("Cache-Control", "no-cache")
        file, changed_at = self.file()
        if file.suffix == ".html":
            scripts = scripts_in(file, changed_at)
        elif file.name.endswith("-worker.js"):  # it compiles Python's interpreter; pages may not
            scripts = (COMPILE,)
        else:
            return
        self.set_header("Content-Security-Policy", header(self.request.host, scripts))

    def compute_etag(self) -> str:
        # Tornado caches hashes for the life of the server, so a rebuilt page would look unchanged.
        stat = os.stat(self.absolute_path or "")
        return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
