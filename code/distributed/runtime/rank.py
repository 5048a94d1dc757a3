"""Main function of a rank: how each process of a world starts, and what it does.

It joins the group, waits for calls, answers each with a result or an error, and exits at the
latest when its caller does.
"""

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from threadpoolctl import ThreadpoolController

from distributed.runtime.board import Board
from distributed.runtime.group import Group
from distributed.runtime.processes import end_children
from distributed.runtime.report import describe

# The caller keeps the time: this only has to be longer than any call.
NEVER = timedelta(days=365)
# gloo reduces what is on the CPU: NumPy arrays, counts, losses. NCCL can't do that.
WITH_NCCL = "cpu:gloo,cuda:nccl"
LIBRARIES = ThreadpoolController()  # NumPy's, with its own threads; finding it takes 3 ms
LARGEST_RESULT = 1 << 30  # bytes; the caller holds the results of all ranks


@dataclass(frozen=True)
class RankSpec:
    """Settings of one rank: its number, its world, and the folder where the ranks meet."""

    rank: int
    size: int
    backend: str
    shares_gpu: bool
    threads: int
    folder: Path

    @property
    def device(self) -> torch.device:
        """A GPU for this rank alone (NCCL), a GPU shared with other ranks, or the CPU."""
        if self.backend == WITH_NCCL or self.shares_gpu:
            return torch.device("cuda", self.rank % torch.cuda.device_count())
        return torch.device("cpu")

    @property
    def stack_file(self) -> Path:
        """File for the rank's stack, written on SIGUSR1."""
        return self.folder / f"stack-{self.rank}"

    @property
    def reply_file(self) -> Path:
        """File for the result or the error of a call."""
        return self.folder / f"reply-{self.rank}"


def choose_backend(ranks: int, device: str) -> tuple[str, bool, str]:
    """The backend, whether ranks share a GPU, and a description of both.

    A different device is never chosen silently: raises ValueError if the request can't be met.
    """
    if type(ranks) is not int or ranks < 1:
        raise ValueError(f"ranks={ranks!r}: a world has 1 rank or more")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r}: choose 'auto', 'cpu' or 'cuda'")
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and gpus == 0:
        raise ValueError("device='cuda': this machine has no CUDA GPU; choose 'auto' or 'cpu'")
    gpus_here = f"{gpus} GPU{'s' * (gpus > 1)}"
    if gpus >= ranks:
        return WITH_NCCL, False, "nccl · a GPU each"
    if device == "cuda":
        return "gloo", True, f"gloo · sharing {gpus_here}"
    return "gloo", False, "gloo · CPU" + f" ({gpus_here} for {ranks} ranks)" * (gpus > 0)


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would run it again in every rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start_rank(context: Any, spec: RankSpec) -> tuple[Any, Connection, Connection]:
    """Start one rank: its process, the pipe for calls and results, the pipe for its output."""
    pipe, its_pipe = context.Pipe()
    printed, its_output = context.Pipe(duplex=False)
    arguments = (spec, its_pipe, its_output, dict(os.environ))
    process = context.Process(target=be_a_rank, args=arguments, name=f"rank {spec.rank}")
    process.start()
    its_pipe.close()  # our copy would keep the pipe open after the rank exits
    its_output.close()
    return process, pipe, printed


def be_a_rank(
    spec: RankSpec, calls: Connection, output: Connection, environ: dict[str, str]
) -> None:
    """Join the group and answer calls until None comes. The main function of every rank."""
    gc.freeze()  # the fork server's imports: a collection would copy their pages
    gc.enable()
    die_with_parent(spec.folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which ends us
    print_into(output)
    os.environ.clear()
    os.environ.update(environ)  # the fork server's may be older
    with spec.stack_file.open("w") as stack:
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        group = None
        while (call := calls.recv()) is not None:
            try:
                group = group or join(spec)
                group.close(wait=False)  # what the last call left open on all ranks
                fn, args = cloudpickle.loads(call.read_bytes())
                reply = pack_result(fn(group, *args))
            except BaseException as error:
                reply = cloudpickle.dumps(("error", describe(error)))
            sys.stdout.flush()
            sys.stderr.flush()
            # Through a file: the caller never waits for a rank that stopped while writing.
            spec.reply_file.write_bytes(reply)
            calls.send(spec.reply_file)
        end_children()
        # The process group ends with the process: destroying it takes longer than a launch.


def join(spec: RankSpec) -> Group:
    """Join the process group through a new file: no port to choose, so no conflict."""
    compute_with(spec.threads)
    if spec.device.type == "cuda":
        torch.cuda.set_device(spec.device)
    # Use the loopback interface: the ranks of `launch` are all on this machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(str(spec.folder / "rendezvous"), spec.size)
    dist.init_process_group(
        spec.backend, store=store, rank=spec.rank, world_size=spec.size, timeout=NEVER
    )
    board = Board(spec.folder / "board", spec.rank, spec.size)
    return Group(spec.device, board, spec.size)


def compute_with(threads: int) -> None:
    """Set the number of threads that PyTorch and NumPy use in this process."""
    torch.set_num_threads(threads)
    LIBRARIES.limit(limits=threads, user_api="blas")


def pack_result(value: Any) -> bytes:
    """The reply with a result; TypeError if it can't be pickled, ValueError if it is too large."""
    what = f"the result, of type {type(value).__name__},"
    try:
        reply = cloudpickle.dumps(("result", value))
    except Exception as error:
        raise TypeError(f"{what} cannot be sent back: {error}") from None
    if len(reply) > LARGEST_RESULT:
        raise ValueError(
            f"{what} has {len(reply)} bytes, more than {LARGEST_RESULT}: "
            "return less, or write it to a file and return the path"
        )
    return reply


def print_into(output: Connection) -> None:
    """Redirect this process's output, from Python and C++, to the caller, line by line."""
    for fd in (1, 2):
        os.dup2(output.fileno(), fd)
    output.close()
    sys.stdout, sys.stderr = (
        open(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        for fd in (1, 2)
    )


def die_with_parent(folder: Path) -> None:
    """Exit when the caller exits, for whatever reason, and remove the folder of the world."""
    if sys.platform == "linux":  # the kernel does it, even while Python is stuck
        kill_me_when_my_parent_ends = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(kill_me_when_my_parent_ends, signal.SIGKILL)
    caller = multiprocessing.parent_process()
    if caller is None:
        return

    def watch() -> None:  # the parent is the fork server, so watch the caller, too
        wait([caller.sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch the caller").start()
