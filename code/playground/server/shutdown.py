"""A kernel that ends as soon as it is asked to, also after a launch: importing this does it.

ipykernel ends its children with SIGTERM and looks, for up to 14 s, whether there are any left. Of
what `multiprocessing` starts, nothing goes by itself: the resource tracker ignores that signal, and
the fork server, once it has ended, is listed until somebody waits for it. After 2.5 s Jupyter
killed the kernel. A reader's restart, and each page that is executed, took so much longer.
"""

import contextlib
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil
from ipykernel.kernelapp import IPKernelApp


def end_ranks() -> None:
    """End the ranks, the fork server and the tracker, and wait for them, in this order."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        return
    process = psutil.Process(server._forkserver_pid)
    for each in (*process.children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.terminate()
    with contextlib.suppress(FileNotFoundError):  # its socket, if it could remove it itself
        server._stop()
    tracker: Any = resource_tracker._resource_tracker
    tracker._stop()  # and for the tracker, which ends when nobody can write to it any more


if IPKernelApp.initialized():
    kernel = IPKernelApp.instance().kernel
    ends = kernel.do_shutdown

    def do_shutdown(restart: bool) -> Any:
        end_ranks()
        return ends(restart)

    kernel.do_shutdown = do_shutdown
