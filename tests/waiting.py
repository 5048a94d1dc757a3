"""Waiting in a test for what comes by itself."""

import time
from collections.abc import Callable

PATIENCE = 60  # s; long, because a slow machine is not a failure


def soon(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return done()
