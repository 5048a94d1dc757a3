"""Owner of the program at the other end of a connection from this machine.

Every user of the machine can reach a server that listens on 127.0.0.1. The address that we have a
browser open is on its command line, which every user can read. But the system records which user
created a socket.
"""

import os
import socket
import struct
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0  # it can read our memory anyway; in WSL it forwards the requests of Windows' browser


def are_told() -> bool:
    """Whether this system tells which user made a connection."""
    return TABLES[0].exists()


class OwnUsersServer(HTTPServer):
    """Closes a connection from another user without reading from it."""

    def handle_stream(self, stream: IOStream, address: tuple) -> None:
        # Connections come and go while the table is read in pieces, so it may miss one once.
        if any(is_own(stream.socket) for _ in range(2)):
            super().handle_stream(stream, address)
        else:
            stream.close()


def is_own(accepted: socket.socket) -> bool:
    """Whether the program at the other end belongs to us or to root."""
    try:
        client, here = accepted.getpeername(), accepted.getsockname()
    except OSError:  # the connection is closed
        return False
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
                return inode != 0 and user in (os.geteuid(), ROOT)
    return False


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
