"""Start what a first cell needs while the kernel itself still starts: importing this does it.

The fork server and the kernel both have to import torch, which takes most of the time of a first
run. Here they begin at once and side by side, instead of one after the other when the cell runs.
"""

import importlib
import multiprocessing
import threading
from multiprocessing import forkserver

if "forkserver" in multiprocessing.get_all_start_methods():
    # As `distributed.rank.fork_server` asks for it; that module cannot be imported yet, for it
    # would import torch here first.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distributed.rank"])
    forkserver.ensure_running()
    threading.Thread(target=importlib.import_module, args=["torch"], daemon=True).start()
