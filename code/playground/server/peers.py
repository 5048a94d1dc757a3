"""Owner of the program at the other end of a connection from this machine.

Every user of the machine can reach a server that listens on 127.0.0.1. The address that we have a
browser open is on its command line, which every user can read. But the system records which user
created a socket.
"""

import os
import pwd
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
CLOSED = -1
UNKNOWN = (
    "this system doesn't say which user made it, as under WSL's mirrored network and in some "
    "containers. If you are the only user of this machine, start with: make serve ANY_USER=1"
)
OTHER = "it is of user {name}, and the book answers only the user who started it"
ROOT = 0  # it can read our memory anyway; in WSL it forwards the requests of Windows' browser


def are_told() -> bool:
    """Whether this system tells which user made a connection."""
    return TABLES[0].exists()


class OwnUsersServer(HTTPServer):
    """Refuses a connection from another user, without reading from it.

    With `any_user`, it accepts a connection if the system doesn't list its user. A refusal is one
    line in the browser, and the first time also one in the terminal.
    """

    any_user = False

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self.refused: set[str] = set()  # the reasons that the terminal has shown

    def handle_stream(self, stream: IOStream, address: tuple) -> None:
        user = owner(stream.socket)
        if user is None:  # connections come and go while the table is read, so it may miss one
            user = owner(stream.socket)
        if user in (os.geteuid(), ROOT) or (user is None and self.any_user):
            super().handle_stream(stream, address)
        else:
            self.refuse(stream, UNKNOWN if user is None else OTHER.format(name=name_of(user)))

    def refuse(self, stream: IOStream, why: str) -> None:
        if why not in self.refused:
            self.refused.add(why)
            print(f"Refused a connection: {why}", file=sys.stderr, flush=True)
        body = f"The book refused this connection: {why}\n".encode()
        head = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        # Closing it with the request unread would reset it before the browser has read the answer.
        sent = stream.write(head.encode() + body)
        sent.add_done_callback(lambda _: IOLoop.current().call_later(1, stream.close))


def owner(accepted: socket.socket) -> int | None:
    """The user of the program at the other end; None if the system doesn't list the connection.

    A socket whose program has closed it is of no user, -1.
    """
    try:
        client, here = accepted.getpeername(), accepted.getsockname()
    except OSError:  # the connection is closed
        return CLOSED
    for table, family in zip(TABLES, (socket.AF_INET, socket.AF_INET6), strict=False):
        ends = f" {written(client, family)} {written(here, family)} "
        try:
            lines = table.read_text().splitlines()
        except OSError:  # a machine without IPv6
            continue
        for line in lines:
            if ends in line:
                fields = line.split()
                user, inode = int(fields[7]), int(fields[9])
                # The table gives root as the owner of a socket that its program has closed.
                return user if inode else CLOSED
    return None


def name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def written(address: tuple, family: int) -> str:
    """An address in the form of the tables: `0100007F:1F90` is 127.0.0.1, port 8080."""
    host, port = address[:2]
    if family == socket.AF_INET6 and ":" not in host:
        host = f"::ffff:{host}"
    if family == socket.AF_INET and ":" in host:
        return "no such address"
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
