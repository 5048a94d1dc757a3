"""The process that forks all ranks: it has imported torch and computes nothing.

Forking the caller itself would copy locks that its threads hold; a fresh Python for each rank
would import torch each time. Where there is no fork server (Windows), each rank is fresh.
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

# torch.optim imports torch._dynamo when first used: once here, and not again in every rank.
IMPORTED = ["distributed.runtime.no_collection", "distributed.runtime.rank"]
IMPORTED += ["distributed.runtime.fork_server", "torch._dynamo"]
LONGEST_FOLDER = 70  # bytes: a socket in a folder below it has a path of at most 103


def fork_server() -> Any:
    """The way ranks start, as a context of `multiprocessing`. This starts no process yet."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        forget_the_server_of_another_process()
        choose_a_short_folder()
    context.set_forkserver_preload(IMPORTED)
    return context


def forget_the_server_of_another_process() -> None:
    """In a process that was forked after its parent's first launch: start a server of its own.

    Python would wait for the parent's, which only the parent can (ChildProcessError).
    """
    from multiprocessing import forkserver  # not where there is none

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        return
    try:
        ended, _ = os.waitpid(server._forkserver_pid, os.WNOHANG)
    except ChildProcessError:
        ended = 1
    if ended:  # or it was killed, and Python would wait for it once more
        os.close(server._forkserver_alive_fd)  # the parent's server is not to wait for us
        server.__init__()


def choose_a_short_folder() -> None:
    """Where TMPDIR is long, the fork server's socket stands in /tmp: the system limits its path."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        usual, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            util.get_temp_dir()  # chosen now, and removed at the end of this process
        finally:
            tempfile.tempdir = usual


@atexit.register
def remove_socket() -> None:
    """At the end of a fork server: remove its socket, if its caller was killed and could not.

    It ends when its caller and all ranks have. In all other processes there is nothing to remove.
    """
    module: Any = sys.modules.get("multiprocessing.forkserver")
    address = module and module._forkserver._forkserver_address
    if address and module._forkserver._forkserver_pid is None:  # we are it
        with contextlib.suppress(OSError):
            Path(address).unlink()
        with contextlib.suppress(OSError):  # not empty: the caller's other things
            Path(address).parent.rmdir()
