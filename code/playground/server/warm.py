"""Early imports for the first cell, while the kernel itself still starts; importing this does it.

The fork server and the kernel both have to import torch, which takes most of the time of a first
run. Here both imports start immediately and run in parallel, instead of one after the other when
the cell runs.
"""

import gc
import threading
from multiprocessing import forkserver

from distributed.runtime.fork_server import fork_server


def import_torch() -> None:
    gc.disable()  # an import creates hundreds of thousands of objects, and no garbage
    try:
        __import__("torch")
    finally:
        gc.enable()


if fork_server().get_start_method() == "forkserver":
    forkserver.ensure_running()
    threading.Thread(target=import_torch, daemon=True).start()
