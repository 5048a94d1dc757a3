"""Ranks per host: which ranks share a host, if the launcher doesn't say it."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist


def names_a_host() -> str:
    """This host's name and, on Linux, its boot ID, which differs if two hosts share a name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def say_where(store: dist.Store, rank: int) -> None:
    """Store this host's name for the other ranks."""
    store.set(f"host of rank {rank}", names_a_host())


def ranks_here(store: dist.Store, ranks: Sequence[int]) -> list[int]:
    """The ranks among `ranks` that are on this host; waits until each has called `say_where`."""
    mine = names_a_host()
    return [rank for rank in ranks if store.get(f"host of rank {rank}").decode() == mine]


def place_here(store: dist.Store, rank: int, size: int) -> tuple[int, int]:
    """(LOCAL_RANK, LOCAL_WORLD_SIZE) as torchrun would set them.

    Under `srun` or `mpirun` they are unset. Raises ValueError if a host's ranks have gaps.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ.get("LOCAL_RANK", rank)), int(os.environ["LOCAL_WORLD_SIZE"])
    say_where(store, rank)
    here = ranks_here(store, range(size))
    if here != [*range(here[0], here[0] + len(here))]:
        raise ValueError(
            f"ranks {here} are on this host: start them so that each host has consecutive ranks "
            "(with srun, --distribution=block), or set LOCAL_RANK and LOCAL_WORLD_SIZE"
        )
    return here.index(rank), len(here)
