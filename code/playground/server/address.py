"""Where the book stands: at a host name and below a path that only its reader knows.

For cookies all ports of a machine are one site. Whatever another user serves here on another port
would be sent the cookies of the book, and could use them, if they belonged to the path `/`. They
belong to a secret path.

A service worker answers for all paths of its host and port, long after its server is gone. One that
another user left in the reader's browser would see a secret path. It does not answer at another
host name; browsers take each name below `localhost` for this machine, and ask nobody.

Both are kept, so that bookmarks hold. Somebody who listens on the port while the book is down, and
whom an open page or a bookmark asks for it, learns both: a new secret is made by removing the file.
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

BYTES = 24
WRITTEN = re.compile(rf"[0-9a-f]{{{2 * BYTES}}}\n?")


class NotSecret(Exception):
    """What is kept may be known to others; the text says what to do."""


@dataclass(frozen=True)
class Address:
    """What readers open is `root` and then `path`."""

    root: str  # such as http://127.0.0.1:8123
    path: str  # such as /b-…/
    is_proxied: bool = False

    @property
    def name(self) -> str:
        """The host name that their browsers send."""
        return urlsplit(self.root).hostname or HOST

    @staticmethod
    def here(port: int, secret: str, name: str = "") -> "Address":
        """On this machine, by a secret name unless `name` is given.

        Safari does not take names below `localhost` for this machine, so none is made on macOS.
        """
        name = name or (HOST if sys.platform == "darwin" else f"book-{secret[32:]}.localhost")
        return Address(f"http://{name}:{port}", f"/b-{secret[:32]}/")

    @staticmethod
    def behind(proxy: str, secret: str) -> "Address":
        """Below the address that a proxy in front of the server has. Raises `ValueError`."""
        parts = urlsplit(proxy)
        is_path = re.fullmatch(r"(/[\w.~%-]+)*/?", parts.path, re.ASCII)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_path:
            raise ValueError("give an address such as https://books.example/user/me/")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError("give the address alone, without ?, # or a user")
        path = f"{parts.path.rstrip('/')}/b-{secret[:32]}/"
        return Address(f"{parts.scheme}://{parts.netloc}", path, is_proxied=True)


def bind(port: int | None) -> list[socket.socket]:
    """Listen on this machine, on `port`: 0 is any that is free. Raises `OSError`.

    Without one it is the usual port, or a free one if that is in use.
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
        except OSError as error:  # free for one of the two protocols only
            if error.errno != EADDRINUSE:
                raise
    return bind_both(port or 0)


def bind_both(port: int) -> list[socket.socket]:
    """For a browser, names below `localhost` are IPv4 and IPv6: another user must get neither."""
    sockets = bind_sockets(port, HOST)
    try:
        return sockets + bind_sockets(sockets[0].getsockname()[1], "::1")
    except OSError as error:
        if error.errno in (EADDRNOTAVAIL, EAFNOSUPPORT):  # a machine without IPv6
            return sockets
        sockets[0].close()
        raise


def kept_secret(file: Path) -> str:
    """The secret in `file`, which is made when it is not there.

    Where it cannot be kept (a folder that is not ours, a file system that lets all users read all
    files), a new one is returned each time. Raises `NotSecret` if others can read or change the
    file, or can have made it.
    """
    try:
        kept = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return new_secret(file)
    except OSError as error:  # a link, or not ours to read
        raise NotSecret(f"{file} cannot be used ({error.strerror}): remove it") from None
    with os.fdopen(kept) as stream:
        if not is_private(kept):
            raise NotSecret(f"other users can read or change {file}: remove it, for a new address")
        text = stream.read(2 * BYTES + 2)
    if not WRITTEN.fullmatch(text):
        raise NotSecret(f"{file} is not what the server wrote: remove it")
    return text.strip()


def new_secret(file: Path) -> str:
    """Make a secret and keep it in `file`, where nobody else can read that."""
    secret = secrets.token_hex(BYTES)
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        print(f"The address of the book is new: {file} cannot be written", file=sys.stderr)
        return secret
    with os.fdopen(made, "w") as stream:
        if is_private(made):
            stream.write(f"{secret}\n")
            return secret
    file.unlink()  # a file system without owners, such as a Windows disk under WSL
    print(f"The address of the book is new: others could read {file}", file=sys.stderr)
    return secret


def is_private(opened: int) -> bool:
    """Is this open file ours, and can nobody else read or write it?"""
    found = os.fstat(opened)
    is_ours = found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
    return is_ours and not found.st_mode & 0o077
