"""A training under torchrun that is slow for one planted reason, and traces four of its steps.

torchrun --nproc-per-node 2 slow_job.py REASON FOLDER      REASON: rank | loader | messages
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WIDTH, ROWS = 256, 64


class Examples(Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 100 * ROWS

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.randn(WIDTH)


def main(reason: str, folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(40)]
    model = nn.Sequential(*(layers if reason == "messages" else layers[:8]))
    size = 1e-6 if reason == "messages" else 25.0  # MB of a bucket
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Examples(0.004 if reason == "loader" else 0), batch_size=ROWS))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=2, active=4),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/{rank}.json.gz"),
    ) as profiler:
        for _ in range(8):
            loss = model(next(batches)).square().mean()
            if reason == "rank" and rank == 1:
                time.sleep(0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
