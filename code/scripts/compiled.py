"""Stage 5, each block compiled: torchrun --nproc-per-node 8 compiled.py RUN

RUN is a folder that all hosts can access. Run the same command again, on any
number of ranks that divides the batch, and it resumes from the last checkpoint.
In train.py: `distribute`, with --compile.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from model import Adder, Sums
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

BATCH, PIECES, EPOCHS = 128, 4, 2
PRECISION = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)


def main(folder: str) -> list[float]:
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
    for block in model.blocks:  # equal blocks share what was compiled
        block.compile()
    for part in (*model.blocks, model):  # the root comes last and takes the rest
        fully_shard(part, mp_policy=PRECISION)
    torch.manual_seed(1 + rank)  # weights are equal now, and dropout should not be
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def state() -> dict:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    saved = Path(folder).glob("*/.metadata")  # the file written last
    epochs = [int(file.parent.name) for file in saved]
    begin = torch.tensor(max(epochs, default=-1) + 1, device=device)
    dist.broadcast(begin, 0)  # hosts may not see a new file at the same time
    if begin:
        loaded = state()
        dcp.load(loaded, checkpoint_id=f"{folder}/{begin - 1:06}")
        weights, moments = loaded["model"], loaded["optimizer"]
        given = {"model_state_dict": weights, "optim_state_dict": moments}
        set_state_dict(model, optimizer, **given)

    data = Sums("train")
    sampler = DistributedSampler(data, drop_last=True)
    share, left = divmod(BATCH, ranks)
    assert left == share % PIECES == 0, f"BATCH={BATCH}, not a multiple of {ranks} x {PIECES}"
    loader = DataLoader(data, share, sampler=sampler, drop_last=True)

    history = []
    for epoch in range(int(begin), EPOCHS):
        sampler.set_epoch(epoch)
        losses = []
        for digits, following in loader:
            pieces = zip(digits.chunk(PIECES), following.chunk(PIECES), strict=True)
            for x, y in pieces:  # each is reduced, so that no rank holds whole gradients
                loss = model(x.to(device), y.to(device)) / PIECES
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        of_all = torch.stack(losses).view(-1, PIECES).sum(1)
        dist.all_reduce(of_all)  # once an epoch, not once a step
        if not of_all.isfinite().all():  # in the sum, so all ranks stop
            raise SystemExit(f"epoch {epoch}: a loss is not finite, so nothing of it is saved")
        history += (of_all / ranks).tolist()
        if rank == 0:
            print(f"epoch {epoch}: loss {history[-1]:.3f}")
        dcp.save(state(), checkpoint_id=f"{folder}/{epoch:06}")
    return history


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
    dist.destroy_process_group()  # not before the model is gone: that can hang
