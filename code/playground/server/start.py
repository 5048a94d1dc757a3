"""How a kernel of the book starts, for the server and for the execution of pages."""

import os
import uuid
from pathlib import Path

LONGEST_SOCKET = 103  # bytes of a socket's path: macOS takes 103, Linux 107


def transport(folder: Path) -> str:
    """How one talks to a kernel: by sockets in `folder`, or by ports if its path is too long.

    A port is free when Jupyter looks for one. Any program may have it by the time the kernel is up;
    then the kernel ends, and who pressed Run waits for ever.
    """
    longest = folder / f"kernel-{uuid.uuid4()}-ipc-5"
    return "ipc" if len(os.fsencode(longest)) <= LONGEST_SOCKET else "tcp"


def at_start(*lines: str) -> list[str]:
    """The arguments that have a kernel run `lines` before it says that it is there."""
    return [f"--IPKernelApp.exec_lines={line}" for line in lines]


def importing(module: str) -> str:
    return f"__import__('playground.server.{module}')"
