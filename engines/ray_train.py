"""A training function of the book as a job of Ray Train, on a cluster that Ray knows.

    python engines/ray_train.py --workers 4 --folder /shared/run

Ray starts the workers, gives them ranks, and starts all of them again when one dies: the same
`train_rank` as everywhere goes on from its checkpoint.
"""

import argparse
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from distributed import Group
from distributed.checkpoint import steps
from distributed.elastic import train_rank


def worker(given: dict[str, Any]) -> None:
    """One rank: Ray has made PyTorch's process group; the rest is this book's."""
    context = ray.train.get_context()
    device = torch.device("cuda", context.get_local_rank()) if given["gpu"] else torch.device("cpu")
    group = Group(device, local_size=context.get_local_world_size())
    work = given["stage"], given["batch"], given["until"], given["every"], 0.0, given["die_at"]
    losses = train_rank(group, given["folder"], *work)
    if group.rank == 0:
        print(f"{len(losses)} steps, last loss {losses[-1]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--workers", type=int, default=4)
    add("--folder", required=True, help="for checkpoints; all hosts must see it")
    add("--gpu", action="store_true", help="one GPU for each worker")
    add("--stage", type=int, default=3, help="of ZeRO")
    add("--batch", type=int, default=256)
    add("--until", type=int, default=12, help="steps")
    add("--every", type=int, default=3, help="steps from one checkpoint to the next")
    add("--die-at", type=int, default=-1, help="rank 1 dies before this step, once")
    given = parser.parse_args()
    TorchTrainer(
        worker,
        train_loop_config=vars(given),
        torch_config=TorchConfig(backend="nccl" if given.gpu else "gloo", timeout_s=60),
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=given.gpu),
        run_config=RunConfig(storage_path=f"{given.folder}-ray", failure_config=FailureConfig(3)),
    ).fit()
    print(f"checkpoints of steps {', '.join(map(str, steps(given.folder)))} in {given.folder}")


if __name__ == "__main__":
    main()
