"""Whose program is at the other end of a connection from this machine.

A server that listens on 127.0.0.1 is heard by every user of the machine, and what we have a browser
open stands on a command line that every user can read. But the system knows who made a socket.
"""

import os
import socket
import struct
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0  # can read our memory; in WSL it passes on what Windows' browser asks


def are_told() -> bool:
    """Does this system say whose a connection is?"""
    return TABLES[0].exists()


class OwnUsersServer(HTTPServer):
    """Closes a connection that another user made, unheard."""

    def handle_stream(self, stream: IOStream, address: tuple) -> None:
        # The table is read in pieces, while connections come and go: one may be missed once.
        if any(is_own(stream.socket) for _ in range(2)):
            super().handle_stream(stream, address)
        else:
            stream.close()


def is_own(accepted: socket.socket) -> bool:
    """Is the program at the other end ours, or root's?"""
    try:
        client, here = accepted.getpeername(), accepted.getsockname()
    except OSError:  # it is gone
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
                # A socket that its program has closed belongs to nobody, which reads as root.
                return inode != 0 and user in (os.geteuid(), ROOT)
    return False


def written(address: tuple, family: int) -> str:
    """An address as the tables have it: `0100007F:1F90` is 127.0.0.1, port 8080."""
    host, port = address[:2]
    if family == socket.AF_INET6 and ":" not in host:
        host = f"::ffff:{host}"
    if family == socket.AF_INET and ":" in host:
        return "no such address"
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
