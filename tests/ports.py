"""Ports that only one test uses."""

import random
import socket

BELOW_THE_SYSTEMS = range(15_000, 32_000)  # the system gives other sockets ports from 32768 on


def free_port() -> int:
    """A port that is free now, and that nobody gets by asking the system for any port."""
    while True:
        port = random.SystemRandom().choice(BELOW_THE_SYSTEMS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
