"""One file, three ways to run it: as a script, as one rank under torchrun, as a cell of a page.

`run_script(main)` turns the parameters of `main` into options of a command line, and its wrong
arguments into one line of error. Under torchrun every rank runs the whole file: there rank 0 alone
speaks outside of `launch`, and inside it every line carries its rank's number.
"""

import argparse
import atexit
import contextlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Parser(argparse.ArgumentParser):
    """A command line whose errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def to_bytes(size: str | int) -> int:
    """ "64MB" → 64,000,000; "64MiB" → 67,108,864. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]i?B|B)?", str(size))
    if not match:
        raise ValueError(f"size={size!r}: write it like 64MB (10⁶ bytes) or 64MiB (2²⁰ bytes)")
    return int(float(match[1]) * UNITS[match[2] or ""])


def run_script(main: Callable[..., Any]) -> None:
    """Call `main` with the options given on the command line; in a cell, with its defaults."""
    if "__file__" not in main.__globals__:  # a cell: the command line is the kernel's, not ours
        main()
        return
    parser = Parser(description=inspect.getdoc(main))
    for name, parameter in inspect.signature(main).parameters.items():
        default = parameter.default
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"({default})")
    options = vars(parser.parse_args())
    try:
        with _only_rank_0_speaks():
            main(**options)
    except ValueError as error:  # a wrong argument, found before any rank started
        parser.error(str(error))


def under_torchrun() -> bool:
    """Whether torchrun, or an engine like it, started this process as one rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


def run_as_torchrun_rank(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    device: str,
    threads: int | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Call `fn(group, *args)` as the rank that the environment says; every rank's result.

    The first call makes the world, all use it, and each has the timeout that it was given (None:
    PyTorch's). Raises ValueError for a device whose back end the world has not got, where another
    than `launch` has made it.
    """
    import torch  # here, because models of cost are scripts that need no torch
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    from distributed.board import Board
    from distributed.group import Group, timeout_of
    from distributed.rank import WITH_NCCL, Place, choose_backend
    from distributed.report import RankError, describe

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    on_this_host = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    backend, shares_gpu, how = choose_backend(on_this_host, device)
    if threads is not None:
        torch.set_num_threads(threads)
    here = Place(int(os.environ.get("LOCAL_RANK", rank)), size, backend, shares_gpu, 1, Path())
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    longest = default_pg_timeout if timeout is None else timedelta(seconds=timeout)
    if not dist.is_initialized():
        widest, *_ = choose_backend(on_this_host, "auto")  # a later call may ask for the GPUs
        dist.init_process_group(widest, timeout=longest)
        atexit.register(dist.destroy_process_group)
    needed, there = "nccl" if backend == WITH_NCCL else "gloo", dist.get_backend_config()
    if needed not in there:
        raise ValueError(f"device={device!r} needs {needed}, and this world was made with {there}")
    same = timeout_of(None, here.device) == longest
    of_all = None if same else dist.new_group(timeout=longest)
    board = Board.of_hosts(here.rank, on_this_host)
    group = Group(here.device, board, on_this_host, of_all)
    print(f"{size} ranks · {how} · torchrun", flush=True)
    with contextlib.redirect_stdout(_Labelled(f"[rank {rank}] ")):
        try:
            result = fn(group, *args)
        except Exception as error:  # what `launch` raises without torchrun, too
            raise RankError(rank, f"raised {describe(error)['what']}") from error
    results: list[Any] = [None] * size
    dist.all_gather_object(results, result, of_all)
    if of_all:
        dist.destroy_process_group(of_all)
    return results


@contextlib.contextmanager
def _only_rank_0_speaks() -> Iterator[None]:
    quiet = under_torchrun() and os.environ["RANK"] != "0"
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        yield


class _Labelled(io.TextIOBase):
    """Writes whole lines only, so that ranks on one terminal do not mix theirs."""

    def __init__(self, label: str):
        self.label, self.rest = label, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        if lines:
            os.write(1, "".join(f"{self.label}{line}\n" for line in lines).encode())
        return len(text)

    def close(self) -> None:
        if self.rest:
            self.write("\n")
        super().close()
