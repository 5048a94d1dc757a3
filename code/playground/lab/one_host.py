"""torchrun on one host, simulated with ranks that are already running: 1 second instead of 10.

    torchrun("code/scripts/ddp.py", ranks=2, EPOCHS=1)

calls the script's `main` in two processes with the environment that torchrun would create, and
returns their results. Names in capitals are set in the script before `main` is called.
"""

import importlib.util
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from distributed import Group, launch

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "code/scripts"


def torchrun(
    script: str | Callable[..., Any],
    *args: Any,
    ranks: int = 2,
    timeout: float = 60,
    dtype: torch.dtype = torch.float32,
    **names: Any,
) -> list[Any]:
    """Run a script (a path from the book's root), or a `main` that was defined in a cell.

    `dtype` is the ranks' default dtype. With `torch.float64`, you can see whether two runs differ
    by more than rounding.
    """
    store = loopback_store()
    what = script if isinstance(script, str) else cloudpickle.dumps(script)
    return launch(
        run_as_rank, what, args, names, store.port, dtype,
        ranks=ranks, device="cpu" if not torch.cuda.is_available() else "auto", timeout=timeout,
    )  # fmt: skip


def loopback_store() -> dist.TCPStore:
    """A store on a free port of 127.0.0.1.

    By default, TCPStore listens on all interfaces, whatever host it is given, and accepts anyone
    who can reach them.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False,
        master_listen_fd=listening.detach(),  # the store closes it
    )  # fmt: skip


def run_as_rank(
    group: Group,
    script: str | bytes,
    args: tuple[Any, ...],
    names: dict[str, Any],
    port: int,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """One rank: leave the group that `launch` made, and call `main` as torchrun would start it."""
    rank, ranks = str(group.rank), str(group.size)
    dist.barrier()  # a rank that leaves closes connections that others may still be opening
    dist.destroy_process_group()
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store exists already
    torch.set_default_dtype(dtype)
    torch.manual_seed(group.rank)  # fresh processes draw different numbers; these are forks of one
    multiprocessing.set_start_method(None, force=True)  # Python's own, for a loader's workers
    sys.path.insert(0, str(SCRIPTS))
    if isinstance(script, bytes):
        main = cloudpickle.loads(script)
        main.__globals__.update(names)
    else:
        module = as_module(ROOT / script)
        vars(module).update(names)
        main = module.main
    return main(*args)


def as_module(path: Path) -> ModuleType:
    """A script as a module: its `main` is defined, but was not called."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
