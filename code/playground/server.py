"""The server behind the live book: its pages and the kernels that run its cells, from one origin.

`python -m playground.server` is Jupyter Server made small. It listens on this machine only, asks
every visitor for Jupyter's token or cookie (pages too: whoever reads a page may run code), and
leaves out what a book does not need: files, terminals, other extensions, the user's configuration.
"""

import argparse
import errno
import hmac
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import DictLoader, Environment
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_server.auth.identity import PasswordIdentityProvider, User
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.handlers import SessionRootHandler
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from traitlets.config import Config

HOST = "127.0.0.1"
# In place of Jupyter's, which load public files and hold the token.
PAGES = {
    "login.html": """<!doctype html><html lang="en"><title>Open the book</title>
<body style="font: 1.1em/1.5 system-ui; max-width: 34em; margin: 4em auto; padding: 0 1em">
<h1>Open the book</h1><p>The cells of this book run on this computer, so the server asks who you
are. Open the address that it printed when it started, or paste the token from it here.</p>
<form method="post" action="/login?next={{ next }}">{{ xsrf_form_html() | safe }}
<label>Token <input type="password" name="password" autofocus></label> <button>Open</button></form>
<p role="alert">{{ message.error if message }}</p></body></html>""",
    "error.html": """<!doctype html><html lang="en"><title>{{ status_code }}</title>
<h1>{{ status_code }} {{ status_message }}</h1><p><a href="/">To the book</a></p></html>""",
}


class BookPages(JupyterHandler, web.StaticFileHandler):
    """The files of the built book, for a reader who is logged in."""

    @web.authenticated
    def head(self, path: str) -> Any:  # type: ignore[override]
        return self.get(path, include_body=False)

    @web.authenticated
    async def get(  # type: ignore[override]
        self, path: str, include_body: bool = True
    ) -> None:
        # Tornado keeps `..` and symlinks inside the folder; hidden files and odd names end here.
        *folders, name = path.split("/")
        odd = any(part.startswith(".") or set(part) & {"\0", "\\"} for part in (*folders, name))
        if odd or "" in folders:
            raise web.HTTPError(404)
        if {"token", "ticket"} & self.request.query_arguments.keys():
            # The cookie is set by now: keep the secret out of history, bookmarks and copied links.
            query = parse_qsl(self.request.query, keep_blank_values=True)
            rest = urlencode([(key, v) for key, v in query if key not in ("token", "ticket")])
            return self.redirect("/" + quote(path) + ("?" + rest if rest else ""))
        _ = self.xsrf_token  # asking sets the cookie that the page's POSTs must send back
        await super().get(path, include_body)

    def get_content_type(self) -> str:
        kind = super().get_content_type()
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

    def get_cache_time(self, *args: Any) -> int:
        return 0

    def set_extra_headers(self, path: str) -> None:
        # Ask again each time (a 304 costs little on one machine), so that a rebuild shows at once.
        self.set_header("Cache-Control", "no-cache")

    def compute_etag(self) -> str:
        # Tornado's is a hash kept for the life of the server: a rebuilt page would look unchanged.
        stat = os.stat(self.absolute_path or "")
        return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'


class BookLogin(PasswordIdentityProvider):
    """Jupyter's token and cookie, and a ticket that logs in once.

    The ticket is for the browser that we open: any user of the machine can read its command line.
    """

    ticket = ""

    def is_token_authenticated(self, handler: Any) -> bool:
        """A token logs in, no more: else Jupyter drops its checks of Origin and XSRF for a request
        that carries one, and lets the page that sent it read the answer."""
        return False

    async def get_user_token(self, handler: Any) -> User | None:
        if self.ticket and hmac.compare_digest(
            handler.get_argument("ticket", "").encode(), self.ticket.encode()
        ):
            self.ticket = ""
            return self.generate_anonymous_user(handler)
        return await super().get_user_token(handler)


class OwnKernel(KernelSpecManager):
    """Only `python3`, and only of this interpreter, whatever kernels the user has installed.

    It warms up as it starts, so that a reader's first run does not wait for torch twice.
    """

    def _kernel_dirs_default(self) -> list[str]:
        return []

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        spec.argv.append("--IPKernelApp.exec_lines=__import__('playground.warm')")
        return spec


class FewKernels(AsyncMappingKernelManager):
    """At most `limit` kernels at a time: each holds torch in memory, and may start ranks."""

    limit = 8
    starting = 0  # kernels that were asked for and that Jupyter does not list yet

    def make_sure_of_room(self) -> None:
        if len(self.list_kernel_ids()) + self.starting >= self.limit:
            raise web.HTTPError(
                503,
                f"This server runs {self.limit} kernels at a time, and all are in use. Close a "
                "page of the book whose cells you ran, then press Run again.",
            )

    async def start_kernel(self, **kwargs: Any) -> str:  # type: ignore[override]
        self.make_sure_of_room()
        self.starting += 1
        try:
            return await super().start_kernel(**kwargs)
        finally:
            self.starting -= 1


class BookSessions(SessionRootHandler):
    """Jupyter's, which would call a server that is full an internal error."""

    kernel_manager: FewKernels

    @web.authenticated
    async def post(self) -> None:
        self.kernel_manager.make_sure_of_room()
        await cast(Awaitable[None], super().post())


class BookServer(ServerApp):
    """Jupyter Server without what a book does not need, and with the book's pages."""

    default_services: Any = ("api", "events", "kernels", "kernelspecs", "security", "sessions")
    identity_provider: BookLogin
    kernel_manager: FewKernels
    html: Path
    sockets: list[socket.socket]

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        """The user's Jupyter configuration is for other servers."""

    migrate_config = load_config_file

    def init_webapp(self) -> None:
        super().init_webapp()
        # Ahead of all of Jupyter's routes but these two: its public files, metrics and so on go.
        pages = (r"(?!/api(?:/|$)|/login$)/?(.*)", BookPages)
        files = {"path": str(self.html), "default_filename": "index.html"}
        sessions = (r"/api/sessions", BookSessions)
        self.web_app.add_handlers(".*$", [sessions, (*pages, files)])

    def init_httpserver(self) -> None:
        # The sockets are bound already: no second look for a port, no other port.
        self._http_server = HTTPServer(self.web_app, max_body_size=self.max_body_size)
        self.io_loop.add_callback(self._http_server.add_sockets, self.sockets)

    def init_signal(self) -> None:
        on_stop(self.stop_once)

    def stop_once(self, *_: Any) -> None:
        """One press of Ctrl-C stops kernels and server; if that hangs, the end comes anyway."""
        if not self._stopping:
            watchdog = threading.Timer(10, os._exit, [1])
            watchdog.daemon = True
            watchdog.start()
            self.stop(from_signal=True)

    async def cleanup_kernels(self) -> None:
        """A kernel ends its children; what is left of its process group after that is killed."""
        kernels = [self.kernel_manager.get_kernel(k) for k in self.kernel_manager.list_kernel_ids()]
        groups = [getattr(kernel.provisioner, "pgid", None) for kernel in kernels]
        await super().cleanup_kernels()
        for group in filter(None, groups):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def start_app(self) -> None:
        # In place of Jupyter's, which writes the token into files and the log.
        self.io_loop.add_callback(self.announce)

    def announce(self) -> None:
        """Say where the book is; later output, of kernels too, goes to stderr."""
        print(f"Open http://{HOST}:{self.port}/?token={self.identity_provider.token}", flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if self.open_browser:
            ticket = self.identity_provider.ticket = secrets.token_hex(24)
            url = f"http://{HOST}:{self.port}/?ticket={ticket}"
            threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()


def make_server(
    html: Path, sockets: list[socket.socket], browser: bool, kernels: int, home: Path
) -> BookServer:
    """Every setting is here: nothing comes from the user's configuration.

    Jupyter's defaults that we rely on: no origin but our own, and no culling of a kernel whose
    page is open or whose cell runs.
    """
    home.joinpath("kernels").mkdir()
    config = Config(
        BookLogin={
            "token": secrets.token_hex(24),
            "hashed_password": "",
            "allow_password_change": False,
            "cookie_options": {"samesite": "Lax"},
        },
        MappingKernelManager={
            "cull_idle_timeout": 20 * 60,
            "cull_interval": 60,
            "transport_encryption": "auto",
        },
        KernelManager={"shutdown_wait_time": 3.0},
        GatewayClient={"url": ""},
    )
    server = BookServer.instance(
        config=config,
        log_level="WARN",
        ip=HOST,
        port=sockets[0].getsockname()[1],
        open_browser=browser,
        allow_remote_access=False,  # keeps the check of the Host header, against DNS rebinding
        allow_unauthenticated_access=False,
        terminals_enabled=False,
        cookie_secret=secrets.token_bytes(32),
        config_dir=str(home),
        data_dir=str(home),
        runtime_dir=str(home / "run"),
        root_dir=str(home / "kernels"),
        kernel_spec_manager_class=OwnKernel,
        kernel_manager_class=FewKernels,
        identity_provider_class=BookLogin,
        extra_log_scrub_param_keys=["ticket"],
        tornado_settings={
            "headers": {"Referrer-Policy": "same-origin"},
            "ws_ping_interval": 0,  # on one machine a lost page closes its socket
            "jinja2_env": Environment(loader=DictLoader(PAGES), autoescape=True),
        },
    )
    server.html, server.sockets = html, sockets
    server.initialize(argv=[], find_extensions=False)
    server.kernel_manager.limit = kernels
    return server


def on_stop(do: Callable[..., Any]) -> None:
    """What Ctrl-C, SIGTERM and a closed terminal (unless under `nohup`) do."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # SIGHUP is not everywhere
        if number and (name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN):
            signal.signal(number, do)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.server", description=__doc__)
    parser.add_argument("--html", type=Path, default=Path("_build/html"), help="the built book")
    parser.add_argument("--port", default="8123", help="0 takes any free port")
    parser.add_argument("--kernels", type=int, default=8, help="how many may run at a time")
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args(argv)

    if not (args.port.isdecimal() and len(args.port) < 6 and int(args.port) < 65536):
        parser.exit(2, f"port {args.port!r} is not a number from 0 to 65535\n")
    if args.kernels < 1:
        parser.exit(2, f"--kernels {args.kernels}: a live cell needs 1 kernel or more\n")
    html = args.html.resolve()
    if not (html / "index.html").is_file():
        parser.exit(1, f"no built book at {args.html}: run make book\n")
    try:
        sockets = bind_sockets(int(args.port), HOST)
    except OSError as error:
        why = "taken" if error.errno == errno.EADDRINUSE else f"refused ({error.strerror})"
        parser.exit(1, f"port {args.port} is {why}: choose another with make serve PORT=…\n")

    on_stop(lambda *_: sys.exit(0))  # until the server's own, so that the folder below goes too
    with tempfile.TemporaryDirectory(prefix="book-", ignore_cleanup_errors=True) as home:
        make_server(html, sockets, args.browser, args.kernels, Path(home)).start()


if __name__ == "__main__":
    main()
