"""Startup of the book's kernels, for the server and for the execution of pages."""

import os
import uuid
from pathlib import Path

LONGEST_SOCKET = 103  # bytes in the path of a socket: macOS allows 103, Linux 107


def transport(folder: Path) -> str:
    """Jupyter's transport to a kernel: sockets in `folder`, or ports if its path is too long.

    Jupyter looks for a free port before the kernel starts. If another program takes the port in the
    meantime, the kernel ends, and the reader who pressed Run waits forever.
    """
    longest = folder / f"kernel-{uuid.uuid4()}-ipc-5"
    return "ipc" if len(os.fsencode(longest)) <= LONGEST_SOCKET else "tcp"


def at_start(*lines: str) -> list[str]:
    """Arguments that make a kernel run `lines` before it reports that it is ready."""
    return [f"--IPKernelApp.exec_lines={line}" for line in lines]


def importing(module: str) -> str:
    return f"__import__('playground.server.{module}')"
