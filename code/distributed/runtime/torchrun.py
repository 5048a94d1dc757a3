"""Rank under torchrun or a similar launcher: call a function in this process as one rank."""

import atexit
import contextlib
import io
import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from distributed.runtime.board import Board
from distributed.runtime.group import Group, timeout_of, world_store
from distributed.runtime.hosts import place_here
from distributed.runtime.rank import WITH_NCCL, RankSpec, choose_backend, compute_with
from distributed.runtime.report import RankError, describe


def run_as_torchrun_rank(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    device: str,
    threads: int | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Call `fn(group, *args)` as the rank that the environment describes; every rank's result.

    The first call makes the world and later calls use it, each with its own timeout (None:
    PyTorch's default). Raises ValueError if the world wasn't made by `launch` and doesn't have the
    backend that the device needs.
    """
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    longest = default_pg_timeout if timeout is None else timedelta(seconds=timeout)
    store = _meeting_point(longest)
    local_rank, on_this_host = place_here(store, rank, size)
    backend, shares_gpu, how = choose_backend(on_this_host, device)
    if threads is not None:
        compute_with(threads)
    here = RankSpec(local_rank, size, backend, shares_gpu, 1, Path())
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    if not dist.is_initialized():
        widest, *_ = choose_backend(on_this_host, "auto")  # a later call may want GPUs
        dist.init_process_group(widest, timeout=longest, store=store, rank=rank, world_size=size)
        atexit.register(dist.destroy_process_group)
    needed, there = "nccl" if backend == WITH_NCCL else "gloo", dist.get_backend_config()
    if needed not in there:
        raise ValueError(f"device={device!r} needs {needed}, and this world was made with {there}")
    same = timeout_of(None, here.device) == longest
    of_all = None if same else _world_that_waits(longest)
    board = Board.of_hosts(here.rank, on_this_host)
    group = Group(here.device, board, on_this_host, of_all)
    print(f"{size} ranks · {how} · torchrun", flush=True)
    with contextlib.redirect_stdout(_Labelled(f"[rank {rank}] ")):
        try:
            result = fn(group, *args)
        except Exception as error:  # as `launch` does without torchrun
            raise RankError(rank, f"raised {describe(error)['what']}") from error
    results: list[Any] = [None] * size
    dist.all_gather_object(results, result, of_all)
    group.close(wait=False)  # all ranks have returned
    return results


def _meeting_point(timeout: timedelta) -> dist.Store:
    """The store of the existing world, or of the world that the environment describes."""
    if dist.is_initialized():
        return world_store()
    store, *_ = next(dist.rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    return dist.PrefixStore("default_pg", store)


@cache
def _world_that_waits(timeout: timedelta) -> dist.ProcessGroup:
    """All ranks, with this timeout; cached, as a gloo group made right after one ends may fail."""
    return dist.new_group(timeout=timeout)


class _Labelled(io.TextIOBase):
    """Writes whole lines only, so that ranks on one terminal don't mix them."""

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
