"""A training script that survives restarts, in plain PyTorch.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else restarted ranks wait for dead ones
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 survive.py

It looks for a checkpoint, and continues from there. With ACCIDENT=8, rank 1 kills itself in step 8,
once, so that you can see it come back.
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

CHECKPOINT, STEPS, BATCH = "checkpoint.pt", 12, 24
ACCIDENT = int(os.environ.get("ACCIDENT", "0"))


def load(model, optimizer):
    """The last step that was saved; 0 if there is no checkpoint."""
    if not os.path.exists(CHECKPOINT):
        return 0
    saved = torch.load(CHECKPOINT)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(model, optimizer, step):
    state = {"step": step, "model": model.module.state_dict()}
    state["optimizer"] = optimizer.state_dict()
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)  # a single operation


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    done, loss = load(model, optimizer), torch.tensor(float("nan"))
    for step in range(done + 1, STEPS + 1):
        if rank == 1 and step == ACCIDENT and done == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        draw = torch.Generator().manual_seed(step)
        rows = torch.randn(BATCH, 8, generator=draw)[rank::ranks]
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if rank == 0:
            print(f"step {step:2}: loss {loss.item() / ranks:.9f}", flush=True)
            if step % 3 == 0:
                save(model, optimizer, step)
    return loss.item() / ranks


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
