"""Elastic training: torchrun restarts the workers, which continue from a checkpoint.

    torchrun --nnodes 1:4 --max-restarts 100 … elastic.py --folder run --until 1000

Everything that determines step k + 1 is in the checkpoint of step k or follows from k: weights, the
optimizer's states, which rows are next. So on the same number of ranks, the losses after a restart
equal those of an uninterrupted run to the bit; on fewer or more ranks, they differ by rounding.
"""

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch

from distributed import Group, launch
from distributed.runtime.report import RankError
from distributed.runtime.script import run_script, under_torchrun


def check_shared(folder: str, group: Group) -> None:
    """Raise ValueError on a rank that doesn't see what rank 0 has written into the folder."""
    now = torch.tensor([time.time_ns()], device=group.device)
    note = Path(folder, f".seen-{group.broadcast(now).item()}")
    if group.rank == 0:
        note.parent.mkdir(parents=True, exist_ok=True)
        for old in note.parent.glob(".seen-*"):
            old.unlink()
        note.touch()
    group.barrier()
    if not note.exists():
        unseen = f"folder={folder!r}: rank {group.rank} does not see what rank 0 writes there"
        raise ValueError(f"{unseen}; give a folder that all hosts share")


def main(
    folder: str = "",
    ranks: int = 4,
    stage: int = 3,
    batch: int = 256,
    until: int = 12,
    every: int = 3,
    pace: float = 0.0,
    die_at: int = -1,
    patience: float = 30.0,
) -> None:
    """Train. Without a folder: kill a rank, restart, and compare with an uninterrupted run.

    Under torchrun, a rank that waits longer than `patience` (s) for one more fails, and torchrun
    restarts all ranks.
    """
    from distributed.checkpoint_folder import steps
    from distributed.zero import BY_STAGE

    if stage not in BY_STAGE:
        raise ValueError(f"stage={stage}: choose from {', '.join(map(str, BY_STAGE))}")
    if until < 1 or every < 1 or patience <= 0:
        raise ValueError(f"until={until}, every={every}, patience={patience}: more than 0 of each")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        longest = patience if under_torchrun() else None
        given = folder, stage, batch, until, every, pace, die_at
        losses = launch(train_rank, *given, ranks=ranks, device="cpu", timeout=longest)[0]
        print(f"{len(losses)} steps, last loss {losses[-1]!r}")
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        work = stage, batch, until, every, 0.0
        once = launch(train_rank, one, *work, ranks=ranks, device="cpu")[0]
        try:
            launch(train_rank, other, *work, until // 2, ranks=ranks, device="cpu")
        except RankError as error:
            print(str(error).splitlines()[0])
        print(f"whole checkpoints: steps {', '.join(map(str, steps(other)))}")
        again = launch(train_rank, other, *work, until // 2, ranks=ranks, device="cpu")[0]
    print(f"the same {len(once)} losses, to the bit: {again == once}")
    assert again == once


def train_rank(
    group: Group,
    folder: str,
    stage: int,
    batch: int,
    until: int,
    every: int,
    pace: float = 0.0,
    die_at: int = -1,
) -> list[float]:
    """One rank: continue from the last complete checkpoint, or start; returns all steps' losses.

    Before step `die_at`, rank 1 kills itself once, as a failure for demonstrations. Each step takes
    `pace` seconds longer, to leave time for failures from outside. Raises ValueError on a rank that
    has a different folder than rank 0.
    """
    from distributed.checkpoint_folder import latest, steps
    from distributed.dp import shard
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network, train
    from distributed.zero import BY_STAGE
    from distributed.zero.checkpoint import load, save

    check_shared(folder, group)
    zero = BY_STAGE[stage](make_network().to(group.device), torch.optim.AdamW, group, lr=1e-2)
    losses: list[float] = json.loads(load(zero, folder)["losses"]) if latest(group, folder) else []
    for step, rows in enumerate(batches(1797, batch, until)):
        if step < len(losses):
            continue
        if step == die_at and group.rank == 1 and first_time(folder):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pace)
        mine = shard(rows, group.rank, group.size)
        loss = train(zero.module, zero.step, [mine], examples=batch / group.size)
        mean = torch.tensor(loss, dtype=torch.float64, device=group.device)
        losses += group.all_reduce(mean, "avg").tolist()
        if group.rank == 0:
            print(f"step {step + 1} on {group.size} ranks: loss {losses[-1]:.6f}", flush=True)
        if (step + 1) % every == 0 or step + 1 == until:
            save(zero, folder, step + 1, losses=json.dumps(losses))
            if group.rank == 0:
                for path in [*steps(folder).values()][:-2]:  # the last two stay
                    shutil.rmtree(path)
    return losses


def first_time(folder: str) -> bool:
    """True only at the first call: it leaves a file in the folder."""
    note = Path(folder, "died")
    if note.exists():
        return False
    note.touch()
    return True


if __name__ == "__main__":
    run_script(main)
