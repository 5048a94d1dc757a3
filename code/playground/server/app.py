"""Server of the live book: its pages and the kernels that run its cells, from one origin.

`python -m playground.server` is a reduced Jupyter Server. It listens on this machine only and asks
every visitor for Jupyter's token or cookie, even for pages, because anyone who can read a page can
run code. It leaves out what a book doesn't need: files, terminals, other extensions, and the user's
configuration.
"""

import argparse
import errno
import fcntl
import hmac
import math
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment
from jupyter_server.auth.identity import PasswordIdentityProvider, User
from jupyter_server.serverapp import ServerApp
from tornado.httpserver import HTTPServer
from traitlets.config import Config

from playground.server.address import HOST, USUAL_PORT, Address, NotSecret, bind, kept_secret
from playground.server.kernels import (
    BookActions,
    BookChannels,
    BookKernels,
    BookSessions,
    FewKernels,
    OwnKernel,
)
from playground.server.limits import GB, MB, Limits, memory_of_machine
from playground.server.pages import HEADERS, PAGES, BookPages, Entrance, Outside, RunsCells
from playground.server.peers import OwnUsersServer, are_told
from playground.server.start import transport

TICKET_LIFE = 60.0  # s; a browser opens sooner than that
PAGE = 1.5  # GB per kernel at least, if memory allows: the largest page takes 1.0


class BookLogin(PasswordIdentityProvider):
    """Jupyter's token and cookie, plus a ticket that logs in once.

    The ticket is for the browser that we open. Any user of the machine can read that browser's
    command line, so no ticket is made on systems that don't tell which user made a connection.
    """

    ticket, expires = "", 0.0
    clock = staticmethod(time.monotonic)

    def is_token_authenticated(self, handler: Any) -> bool:
        """A token may log in but not authenticate requests. Otherwise Jupyter drops its checks of
        Origin and XSRF for a request with a token, and the page that sent it can read the reply."""
        return False

    def make_ticket(self) -> str:
        self.ticket, self.expires = secrets.token_hex(24), self.clock() + TICKET_LIFE
        return self.ticket

    def is_valid(self, ticket: str) -> bool:
        is_known = bool(self.ticket) and self.clock() < self.expires
        return is_known and hmac.compare_digest(ticket.encode(), self.ticket.encode())

    def spend(self, ticket: str) -> bool:
        """Whether this is the ticket; if so, it becomes invalid."""
        if not self.is_valid(ticket):
            return False
        self.ticket = ""
        return True

    async def get_user_token(self, handler: Any) -> User | None:
        if self.spend(handler.get_argument("ticket", "")):
            return self.generate_anonymous_user(handler)
        return await super().get_user_token(handler)


PREFIX, LOCK = "book-server-", "held"  # of the temporary folder, and a file in it


class BookServer(ServerApp):
    """Jupyter Server reduced to the services that a book needs, plus the book's pages."""

    default_services: Any = ("api", "events", "kernels", "kernelspecs", "security", "sessions")
    identity_provider: BookLogin
    kernel_manager: FewKernels
    html: Path
    sockets: list[socket.socket]
    address: Address
    any_user = (
        False  # whether connections are served of which the system doesn't say whose they are
    )

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing: the user's Jupyter configuration is meant for other servers."""

    migrate_config = load_config_file

    def init_webapp(self) -> None:
        super().init_webapp()
        # These precede Jupyter's routes and hide all but two: its public files, metrics and others.
        base = re.escape(self.base_url)
        pages = (rf"{base}(?!api(?:/|$)|login$)(.*)", BookPages)
        files = {"path": str(self.html), "default_filename": "index.html"}
        sessions = (rf"{base}api/sessions", BookSessions)
        kernels = (rf"{base}api/kernels", BookKernels)
        actions = (rf"{base}api/kernels/([\w-]+)/(restart|interrupt)", BookActions)
        told = (rf"{base}_static/server\.json", RunsCells)
        outside = (rf"(?!{base}).*", Outside, {"book": self.address.root + self.address.path})
        ours = [sessions, kernels, actions, told, (*pages, files), outside]
        self.web_app.add_handlers(".*$", ours)

    def init_httpserver(self) -> None:
        # The sockets are already bound, so don't search for a port again.
        asks = are_told() and not self.address.is_proxied  # macOS doesn't tell whose one is
        kind = OwnUsersServer if asks else HTTPServer
        self._http_server = kind(Entrance(self.web_app), max_body_size=self.max_body_size)
        if isinstance(self._http_server, OwnUsersServer):
            self._http_server.any_user = self.any_user
        self.io_loop.add_callback(self._http_server.add_sockets, self.sockets)

    def init_signal(self) -> None:
        on_stop(self.stop_once)

    def stop_once(self, *_: Any) -> None:
        """One press of Ctrl-C stops kernels and server; exits after 10 s even if that hangs."""
        if not self._stopping:
            watchdog = threading.Timer(10, os._exit, [1])
            watchdog.daemon = True
            watchdog.start()
            self.stop(from_signal=True)

    async def cleanup_kernels(self) -> None:
        """A kernel ends its own children; then the rest of its process group is killed."""
        kernels = [self.kernel_manager.get_kernel(k) for k in self.kernel_manager.list_kernel_ids()]
        groups = [getattr(kernel.provisioner, "pgid", None) for kernel in kernels]
        await super().cleanup_kernels()
        for group in filter(None, groups):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def start_app(self) -> None:
        # Replaces Jupyter's method, which writes the token into files and the log.
        self.io_loop.add_callback(self.announce)

    def announce(self) -> None:
        """Print the address of the book; from then on output, also of kernels, goes to stderr."""
        root, path = self.address.root, self.address.path
        print(f"Open {root}{path}?token={self.identity_provider.token}", flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if self.open_browser:
            if self.web_app.settings["spare"]:
                self.kernel_manager.prewarm()  # the reader is about to open a page
            # Other users can see this address, so it has neither our name nor our path. At a name
            # that was used before, another user's service worker may answer, so this name is new.
            name = self.address.name
            if name.endswith(".localhost"):
                name = f"{secrets.token_hex(8)}.localhost"
            url = f"http://{name}:{self.port}/?ticket={self.identity_provider.make_ticket()}"
            threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()


def make_server(
    html: Path,
    sockets: list[socket.socket],
    browser: bool,
    kernels: int,
    limits: Limits,
    home: Path,
    address: Address,
    idle: tuple[float, float] = (20.0, 240.0),
) -> BookServer:
    """Create the server with all its settings; the user's configuration isn't read.

    Everything is served below the path of `address`. `idle` has two times in minutes, after which
    an idle kernel is ended: the first if no page uses it, the second if its page is open.
    Two of Jupyter's defaults matter: it accepts only our own origin, and it doesn't cull a kernel
    while a cell is running.
    """
    home.joinpath("kernels").mkdir()
    config = Config(
        BookLogin={
            "token": secrets.token_hex(24),
            "hashed_password": "",
            "allow_password_change": False,
            "cookie_options": {"samesite": "Lax"},
            "secure_cookie": address.root.startswith("https:"),
        },
        MappingKernelManager={
            "cull_idle_timeout": math.ceil(60 * idle[0]),
            "cull_interval": math.ceil(min(60.0, 20 * min(idle))),
            "transport_encryption": "auto",
            "buffer_offline_messages": False,  # a cell that prints forever would fill our memory
        },
        KernelRestarter={"time_to_dead": 1.0},  # seconds until a dead kernel is noticed
        KernelManager={"shutdown_wait_time": 3.0, "transport": transport(home / "run")},
        GatewayClient={"url": ""},
    )
    OwnKernel.limits = BookChannels.limits = limits
    server = BookServer.instance(
        config=config,
        log_level="WARN",
        ip=HOST,
        base_url=address.path,  # cookies belong to this path and are sent to no other
        local_hostnames=["localhost", address.name],
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
        kernel_websocket_connection_class=BookChannels,
        identity_provider_class=BookLogin,
        extra_log_scrub_param_keys=["ticket"],
        tornado_settings={
            "headers": HEADERS,
            "ws_ping_interval": 0,  # on one machine a page that is gone closes its socket
            "jinja2_env": Environment(loader=DictLoader(PAGES), autoescape=True),
        },
    )
    server.html, server.sockets, server.address = html, sockets, address
    server.initialize(argv=[], find_extensions=False)
    server.kernel_manager.limit = kernels
    server.kernel_manager.idle_open = timedelta(minutes=idle[1])
    server.kernel_manager.start_watch(limits)
    return server


def on_stop(do: Callable[..., Any]) -> None:
    """Set what Ctrl-C, SIGTERM and a closed terminal (unless under `nohup`) do."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # not every system has SIGHUP
        if number and (name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN):
            signal.signal(number, do)


def remove_what_killed_servers_left() -> None:
    """Remove the temporary folders of servers that were killed: no process holds their lock."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open("rb") as held:  # it is held, or another user's
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)


def has_screen() -> bool:
    """Whether a browser can open a window. Otherwise Python might start a text browser in this
    terminal, which would hide the address."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


def is_port(text: str) -> bool:
    return text.isdecimal() and len(text) < 6 and int(text) < 65536


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m playground.server", description=__doc__)
    html = "folder of the built book (default: _build/html)"
    parser.add_argument("--html", type=Path, default=Path("_build/html"), help=html)
    usual_port = f"port; 0: any free one (default: {USUAL_PORT}, or a free one if that is in use)"
    parser.add_argument("--port", help=usual_port)
    proxy = "address that readers use if a proxy is in front of this server: https://host/path/"
    parser.add_argument("--proxy", metavar="URL", help=proxy)
    any_user = "accept connections of which this system doesn't say which user made them"
    parser.add_argument("--any-user", action="store_true", help=any_user)
    kernels = "maximum number of kernels at a time (default: 8)"
    parser.add_argument("--kernels", type=int, default=8, help=kernels)
    limits = "limits at which a kernel is ended or a run is stopped"
    limit = parser.add_argument_group("limits", limits).add_argument
    usual = Limits(memory=0.75 * memory_of_machine())
    of_all = "memory of all kernels together, in GB (default: three quarters of the machine's)"
    limit("--memory", type=float, default=usual.memory / GB, help=of_all)
    of_one = f"memory of one kernel with its ranks, in GB (default: half of --memory, or {PAGE:g})"
    limit("--kernel-memory", type=float, help=of_one)
    processes = "processes of one kernel with its ranks (default: %(default)s)"
    limit("--processes", type=int, default=usual.processes, help=processes)
    text = "text that one run may print, in MB (default: %(default)g)"
    limit("--text", type=float, default=usual.text / MB, help=text)
    idle = "minutes until an idle kernel ends if its page is closed (default: 20)"
    limit("--idle", type=float, default=20.0, help=idle)
    idle_open = "minutes until an idle kernel ends if its page is open (default: 240)"
    limit("--idle-open", type=float, default=240.0, help=idle_open)
    browser = "open the book in a browser (default: yes)"
    parser.add_argument(
        "--browser", action=argparse.BooleanOptionalAction, default=True, help=browser
    )
    spare = "start a kernel before Run is pressed, without later changes to modules (default: yes)"
    parser.add_argument("--spare", action=argparse.BooleanOptionalAction, default=True, help=spare)
    warm = "import torch in a kernel before a cell needs it (default: yes)"
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True, help=warm)
    return parser


def main(argv: list[str] | None = None) -> None:
    parser = arguments()
    args = parser.parse_args(argv)

    if args.port is not None and not is_port(args.port):
        parser.exit(2, f"--port {args.port!r}: must be a number from 0 to 65535\n")
    if os.environ.get("BOOK_HOST", HOST) not in (HOST, "localhost"):
        host = os.environ["BOOK_HOST"]
        parser.exit(2, f"BOOK_HOST={host}: must be {HOST} or localhost, or not be set\n")
    if args.kernels < 1:
        parser.exit(2, f"--kernels {args.kernels}: must be at least 1, for live cells\n")
    if args.kernel_memory is None:
        args.kernel_memory = min(args.memory, max(args.memory / 2, PAGE))
    for name in ("memory", "kernel_memory", "processes", "text", "idle", "idle_open"):
        if not getattr(args, name) > 0:
            option = name.replace("_", "-")
            parser.exit(2, f"--{option} {getattr(args, name):g}: must be more than 0\n")
    each = args.kernel_memory * GB
    limits = Limits(args.memory * GB, each, args.processes, args.text * MB)
    idle = args.idle, args.idle_open
    html = args.html.resolve()
    if not (html / "index.html").is_file():
        parser.exit(1, f"--html {args.html}: no built book there; run make book\n")
    try:
        secret = kept_secret(html.parent / "address")
        proxied = Address.behind(args.proxy, secret) if args.proxy is not None else None
    except NotSecret as error:
        parser.exit(1, f"{error}\n")
    except ValueError as error:
        parser.exit(2, f"--proxy {args.proxy!r}: {error}\n")
    try:
        sockets = bind(None if args.port is None else int(args.port))
    except OSError as error:
        port = USUAL_PORT if args.port is None else args.port
        why = "in use" if error.errno == errno.EADDRINUSE else f"refused ({error.strerror})"
        way = "choose a different port, such as make serve PORT=9000"
        parser.exit(1, f"--port {port}: {why}; {way}\n")
    port = sockets[0].getsockname()[1]
    address = proxied or Address.here(port, secret, os.environ.get("BOOK_HOST", ""))
    # A proxy may be down or on a different machine, and everyone at it could use the ticket.
    browser = args.browser and not proxied and are_told() and has_screen()

    on_stop(lambda *_: sys.exit(0))  # so that the folder below is removed
    remove_what_killed_servers_left()
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as home,
        Path(home, LOCK).open("wb") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        os.environ["IPYTHONDIR"] = f"{home}/ipython"  # the reader's own isn't for ours
        os.environ["KINETO_LOG_LEVEL"] = "99"  # else each trace prints PyTorch's own log lines
        server = make_server(
            html, sockets, browser, args.kernels, limits, Path(home), address, idle
        )
        server.web_app.settings["spare"], server.any_user = args.spare, args.any_user
        OwnKernel.warm = args.warm
        server.start()


if __name__ == "__main__":
    main()
