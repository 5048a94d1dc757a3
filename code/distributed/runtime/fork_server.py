"""Fork server: the process that forks all ranks, after it has imported torch.

Forking the caller itself would copy locks that its threads hold, and a fresh Python process per
rank would import torch each time. Windows has no fork server, so there each rank is fresh.
"""

import atexit
import contextlib
import multiprocessing
import os
import sys
import tempfile
from multiprocessing import util
from pathlib import Path
from typing import Any

# torch.optim imports torch._dynamo on first use: import it here, not again in every rank.
IMPORTED = ["distributed.runtime.no_collection", "distributed.runtime.rank"]
IMPORTED += ["distributed.runtime.fork_server", "torch._dynamo"]
LONGEST_FOLDER = 70  # bytes: the path of a socket in a subfolder then has at most 103


def fork_server() -> Any:
    """The `multiprocessing` context that starts ranks. No process starts here yet."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        forget_the_server_of_another_process()
        choose_a_short_folder()
    context.set_forkserver_preload(IMPORTED)
    return context


def forget_the_server_of_another_process() -> None:
    """Reset Python's fork server in a process that was forked after its parent's first launch.

    Otherwise Python would wait for the parent's server, and only the parent can do that
    (ChildProcessError).
    """
    from multiprocessing import forkserver  # Windows doesn't have it

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        return
    try:
        ended, _ = os.waitpid(server._forkserver_pid, os.WNOHANG)
    except ChildProcessError:
        ended = 1
    if ended:  # also if it was killed: Python would wait for it again
        os.close(server._forkserver_alive_fd)  # the parent's server must not wait for us
        server.__init__()


def choose_a_short_folder() -> None:
    """Put the fork server's socket in /tmp if TMPDIR is long: the system limits its path."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        usual, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            util.get_temp_dir()  # chosen now, and removed when this process exits
        finally:
            tempfile.tempdir = usual


@atexit.register
def remove_socket() -> None:
    """When a fork server exits, remove its socket if its caller was killed and couldn't.

    The server exits after its caller and all ranks. Other processes have nothing to remove.
    """
    module: Any = sys.modules.get("multiprocessing.forkserver")
    address = module and module._forkserver._forkserver_address
    if address and module._forkserver._forkserver_pid is None:  # this is the server
        with contextlib.suppress(OSError):
            Path(address).unlink()
        with contextlib.suppress(OSError):  # not empty: it has other files of the caller
            Path(address).parent.rmdir()
