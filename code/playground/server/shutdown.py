"""Fast shutdown of a kernel, also after a launch; importing this module installs it.

ipykernel sends SIGTERM to its children and then checks for up to 14 s whether any are left. The
children that `multiprocessing` starts don't end on their own: the resource tracker ignores SIGTERM,
and the fork server stays in the list of processes after its end until its parent waits for it.
Jupyter killed the kernel after 2.5 s, so each restart, and each page that is executed, took that
much longer.
"""

import contextlib
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil
from ipykernel.kernelapp import IPKernelApp


def end_ranks() -> None:
    """End the ranks, the fork server and the tracker in this order, and wait for each of them."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        return
    process = psutil.Process(server._forkserver_pid)
    for each in (*process.children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.terminate()
    with contextlib.suppress(FileNotFoundError):  # it may have removed its socket itself
        server._stop()
    tracker: Any = resource_tracker._resource_tracker
    tracker._stop()  # also waits for the tracker, which ends when no process can write to it


if IPKernelApp.initialized():
    kernel = IPKernelApp.instance().kernel
    ends = kernel.do_shutdown

    def do_shutdown(restart: bool) -> Any:
        end_ranks()
        return ends(restart)

    kernel.do_shutdown = do_shutdown
