"""torchrun on one host: what it opens can be reached from this host alone."""

import os
import socket
import sys

import pytest

from playground.lab.one_host import torchrun

# A socket on all interfaces is reached on 127.0.0.2, too. macOS has no such address.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")


def reached() -> list[str]:
    """Addresses of this host on which the ranks' store answers."""
    found = []
    for address in ("127.0.0.1", "127.0.0.2"):
        try:
            socket.create_connection((address, int(os.environ["MASTER_PORT"]))).close()
            found.append(address)
        except ConnectionRefusedError:
            pass
    return found


def test_the_store_listens_on_loopback_alone():
    assert torchrun(reached, ranks=1) == [["127.0.0.1"]]
