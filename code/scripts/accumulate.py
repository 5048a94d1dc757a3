"""Stage 2, a large batch in small pieces: torchrun --nproc-per-node 8 accumulate.py

It doesn't save anything. `train.py --batch B --micro b` does the same: see `Job.backward`.
"""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from model import Adder, Sums
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH, PIECES, EPOCHS = 128, 4, 2


def main() -> list[float]:
    gpu = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, device_id=device if gpu else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        where = torch.cuda.get_device_name() if gpu else "no GPU found, so on CPUs"
        print(f"{ranks} ranks · {backend} · {where}")

    torch.manual_seed(0)
    model = Adder().to(device)
    model = DistributedDataParallel(model, device_ids=[device] if gpu else None)
    torch.manual_seed(1 + rank)  # weights are equal now, and dropout should not be
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data = Sums("train")
    sampler = DistributedSampler(data, drop_last=True)
    share, left = divmod(BATCH, ranks)
    assert left == share % PIECES == 0, f"BATCH={BATCH}, not a multiple of {ranks} x {PIECES}"
    loader = DataLoader(data, share, sampler=sampler, drop_last=True)

    history = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses = []
        for digits, following in loader:
            pieces = zip(digits.chunk(PIECES), following.chunk(PIECES), strict=True)
            for number, (x, y) in enumerate(pieces, start=1):
                with nullcontext() if number == PIECES else model.no_sync():
                    loss = model(x.to(device), y.to(device)) / PIECES
                    loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        of_all = torch.stack(losses).view(-1, PIECES).sum(1)
        dist.all_reduce(of_all)  # once an epoch, not once a step
        history += (of_all / ranks).tolist()
        if rank == 0:
            print(f"epoch {epoch}: loss {history[-1]:.3f}")
    return history


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # not before the model is gone: that can hang
