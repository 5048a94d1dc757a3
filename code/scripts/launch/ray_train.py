"""Run train.py as a Ray Train job, on the devices of a Ray cluster.

    RAY_ADDRESS=10.0.0.1:6379 python ray_train.py --workers 16 DATA RUN --batch 512

Change DATA and RUN (folders that all hosts see), and the address of Ray's head node. All other
options are train.py's. This repository must be at the same path on all hosts, or in the image of
their containers: `docker run --gpus all --network host --shm-size 16g IMAGE ray start --address …
--block`, and with InfiniBand `--device /dev/infiniband --ulimit memlock=-1`. If a host's name
doesn't resolve, or resolves to 127.0.1.1, start Ray with GLOO_SOCKET_IFNAME set to the name of its
network card.

Ray starts the workers, gives them ranks, and creates their process group. If a worker dies, Ray
restarts all of them, and train.py continues from its checkpoint.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

SCRIPTS = str(Path(__file__).resolve().parents[1])


def worker(given: dict[str, Any]) -> None:
    """One rank, in a thread of Ray. No signal reaches it, so stopping it loses unsaved steps."""
    sys.path.insert(0, given["scripts"])
    from train import main

    main(*given["words"])


def a_gpu_each(workers: int, resources: Mapping[str, float]) -> bool:
    """Whether each worker gets a GPU; if the cluster has none at all, they train on CPUs.

    Raises ValueError if only some of them would get one: no group spans NCCL and gloo.
    """
    gpus = int(resources.get("GPU", 0))
    if 0 < gpus < workers:
        raise ValueError(f"workers={workers}: this cluster has GPUs for {gpus} of them")
    return gpus > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    given, words = parser.parse_known_args()
    if len(words) < 2:
        parser.error("DATA and RUN are missing: give them as for train.py")
    if re.search(
        r"\s", sys.executable
    ):  # Ray passes it to a shell without quotes, and then waits forever
        raise SystemExit(
            f"Ray can't start workers from a path that contains a space: {sys.executable}"
        )
    ray.init()
    try:
        gpu = a_gpu_each(given.workers, ray.cluster_resources())
    except ValueError as error:
        raise SystemExit(str(error)) from None
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    TorchTrainer(
        worker,
        train_loop_config={"scripts": SCRIPTS, "words": words},
        torch_config=TorchConfig(backend=backend, timeout_s=600),
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=gpu),
        run_config=RunConfig(failure_config=FailureConfig(3)),
    ).fit()


if __name__ == "__main__":
    main()
