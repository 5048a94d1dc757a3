"""Address of the book: a host name and a path that only the book's reader knows.

Browsers treat all ports of a machine as one site for cookies. If the book's cookies belonged to the
path `/`, the browser would also send them to a server of another user on a different port, and that
user could use them. So they belong to a secret path.

A service worker answers for all paths of its host name and port, even long after its server has
ended. One that another user left in the reader's browser would see the secret path. It doesn't
answer at other host names, so the host name is secret, too. Browsers resolve every name below
`localhost` to this machine without a query to a name server.

Name and path are both kept in a file, so that bookmarks stay valid. While the book isn't running,
another program can listen on its port and learn both from an open page or a bookmark. To make a new
secret, remove the file.
"""

import os
import re
import secrets
import socket
import stat
import sys
from dataclasses import dataclass
from errno import EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from pathlib import Path
from urllib.parse import urlsplit

from tornado.netutil import bind_sockets

HOST = "127.0.0.1"
USUAL_PORT = 8123
NEW = "The book has a new address this time,"

BYTES = 24
WRITTEN = re.compile(rf"[0-9a-f]{{{2 * BYTES}}}\n?")


class NotSecret(Exception):
    """Other users may know the kept secret; the message says what to do."""


@dataclass(frozen=True)
class Address:
    """Readers open `root` followed by `path`."""

    root: str  # such as http://127.0.0.1:8123
    path: str  # such as /b-…/
    is_proxied: bool = False

    @property
    def name(self) -> str:
        """The host name that browsers send."""
        return urlsplit(self.root).hostname or HOST

    @staticmethod
    def here(port: int, secret: str, name: str = "") -> "Address":
        """An address on this machine, with a secret host name unless `name` is given.

        Safari doesn't resolve names below `localhost` to this machine, so macOS gets no such name.
        """
        name = name or (HOST if sys.platform == "darwin" else f"book-{secret[32:]}.localhost")
        return Address(f"http://{name}:{port}", f"/b-{secret[:32]}/")

    @staticmethod
    def behind(proxy: str, secret: str) -> "Address":
        """An address below that of a proxy in front of the server. Raises `ValueError`."""
        parts = urlsplit(proxy)
        is_path = re.fullmatch(r"(/[\w.~%-]+)*/?", parts.path, re.ASCII)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_path:
            raise ValueError("must be an address such as https://books.example/user/me/")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError("must be an address without ?, # or a user name")
        path = f"{parts.path.rstrip('/')}/b-{secret[:32]}/"
        return Address(f"{parts.scheme}://{parts.netloc}", path, is_proxied=True)


def bind(port: int | None) -> list[socket.socket]:
    """Listen on `port` of this machine; 0 means any free port. Raises `OSError`.

    None means the usual port, or a free one if that is in use.
    """
    if port is None:
        try:
            return bind_both(USUAL_PORT)
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
        print(f"Port {USUAL_PORT} is in use, so the book takes a free one", file=sys.stderr)
    for _ in range(20 if not port else 0):
        try:
            return bind_both(0)
        except OSError as error:  # free for only one of the two protocols
            if error.errno != EADDRINUSE:
                raise
    return bind_both(port or 0)


def bind_both(port: int) -> list[socket.socket]:
    """Bind IPv4 and IPv6: `localhost` names are both, and another user must get neither."""
    sockets = bind_sockets(port, HOST)
    try:
        return sockets + bind_sockets(sockets[0].getsockname()[1], "::1")
    except OSError as error:
        if error.errno in (EADDRNOTAVAIL, EAFNOSUPPORT):  # a machine without IPv6
            return sockets
        sockets[0].close()
        raise


def kept_secret(file: Path) -> str:
    """The secret in `file`, which is created if it doesn't exist.

    If the secret can't be kept, a new one is returned each time. That happens in a folder that
    isn't ours, and on file systems on which all users can read all files. Raises `NotSecret` if
    others can read or change the file, or may have created it.
    """
    try:
        kept = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return new_secret(file)
    except OSError as error:  # a link, or a file that we may not read
        raise NotSecret(f"{file} can't be used ({error.strerror}): remove it") from None
    with os.fdopen(kept) as stream:
        if not is_private(kept):
            raise NotSecret(
                f"other users can read or change {file}: remove it to get a new address"
            )
        text = stream.read(2 * BYTES + 2)
    if not text:  # the disk was full when it was made
        file.unlink()
        return new_secret(file)
    if not WRITTEN.fullmatch(text):
        raise NotSecret(f"{file} doesn't contain what the server wrote: remove it")
    return text.strip()


def new_secret(file: Path) -> str:
    """Create a secret and keep it in `file`, readable only by this user."""
    secret = secrets.token_hex(BYTES)
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        print(f"{NEW} because {file} can't be written", file=sys.stderr)
        return secret
    try:
        with os.fdopen(made, "w") as stream:
            if is_private(made):
                stream.write(f"{secret}\n")
                stream.flush()
                return secret
    except OSError as error:  # a full disk: an empty file would be refused at the next start
        file.unlink()
        print(f"{NEW} because {file} can't be written: {error.strerror}", file=sys.stderr)
        return secret
    file.unlink()  # a file system without owners, such as a Windows disk under WSL
    print(f"{NEW} because other users could read {file}", file=sys.stderr)
    return secret


def is_private(opened: int) -> bool:
    """Whether this open file is ours, and no other user can read or write it."""
    found = os.fstat(opened)
    is_ours = found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
    return is_ours and not found.st_mode & 0o077
