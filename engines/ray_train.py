"""A training function of the book as a job of Ray Train, on the devices that its cluster has.

    RAY_ADDRESS=10.0.0.1:6379 python engines/ray_train.py --workers 16 --folder /shared/run

Ray starts the workers, gives them ranks, and starts all of them again when one dies: the same
`train_rank` as everywhere goes on from its checkpoint.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from distributed import Group
from distributed.checkpoint_folder import steps
from distributed.elastic import train_rank


def worker(given: dict[str, Any]) -> None:
    """One rank: Ray has made PyTorch's process group; the rest is this book's."""
    context = ray.train.get_context()
    group = Group(get_device(), local_size=context.get_local_world_size())
    work = given["stage"], given["batch"], given["until"], given["every"], 0.0, given["die_at"]
    losses = train_rank(group, given["folder"], *work)
    if group.rank == 0:
        print(f"{len(losses)} steps, last loss {losses[-1]!r}")


def a_gpu_each(workers: int, resources: Mapping[str, float]) -> bool:
    """Whether each worker gets a GPU; if the cluster has none at all, they train on CPUs.

    Raises ValueError where some of them would get one: no group spans NCCL and gloo.
    """
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < workers:
        raise ValueError(f"workers={workers}: this cluster has GPUs for {gpus} of them")
    return gpus > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--workers", type=int, default=4)
    add("--folder", required=True, help="for checkpoints; all hosts must see it")
    add("--stage", type=int, default=3, help="of ZeRO")
    add("--batch", type=int, default=256)
    add("--until", type=int, default=12, help="steps")
    add("--every", type=int, default=3, help="steps from one checkpoint to the next")
    add("--die-at", type=int, default=-1, help="rank 1 dies before this step, once")
    given = parser.parse_args()
    if re.search(r"\s", sys.executable):  # Ray gives it to a shell without quotes, and waits on
        raise SystemExit(f"Ray starts no workers from a path with a space in it: {sys.executable}")
    ray.init()
    resources = ray.cluster_resources()
    try:
        gpu = a_gpu_each(given.workers, resources)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    backend = "nccl" if gpu else "gloo"
    kinds = [name.split(":")[1] for name in resources if name.startswith("accelerator_type:")]
    where = " and ".join(kinds) or "GPUs" if gpu else "no GPU found, so on CPUs"
    print(f"{given.workers} ranks · {backend} · {where}", flush=True)
    TorchTrainer(
        worker,
        train_loop_config=vars(given),
        torch_config=TorchConfig(backend=backend, timeout_s=60),
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=gpu),
        run_config=RunConfig(storage_path=f"{given.folder}-ray", failure_config=FailureConfig(3)),
    ).fit()
    print(f"checkpoints of steps {', '.join(map(str, steps(given.folder)))} in {given.folder}")


if __name__ == "__main__":
    main()
