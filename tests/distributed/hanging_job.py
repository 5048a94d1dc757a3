"""A training under torchrun that hangs for one planted reason, on one rank.

torchrun --nproc-per-node 4 hanging_job.py REASON FOLDER      REASON: skip | data | lock

Each rank leaves a file in FOLDER as soon as it trains.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS = 5


def log(loss: torch.Tensor, rank: int) -> None:
    if rank != 2:
        dist.all_reduce(loss)
    dist.broadcast(loss, src=0)  # rank 2 hangs here: it skipped the line above


def save(rank: int) -> None:
    while rank == 3 and not Path("/nowhere/lock").exists():
        time.sleep(0.1)  # rank 3 hangs here: it waits for what never comes


def main(reason: str, folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    batches = STEPS - (reason == "data" and rank == 1)
    for _ in range(batches):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        Path(folder, f"{rank}.trains").touch()
    if reason == "skip":
        log(loss.detach(), rank)
    if reason == "lock":
        save(rank)
    dist.barrier()  # rank 1 hangs here: it has run out of data
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
