"""Run a plain PyTorch program as torchrun would: the environment tells ranks who they are."""

import os
import socket
from collections.abc import Callable

import torch.distributed as dist

from distributed import Group, launch


def as_torchrun_does(main: Callable[[], object], ranks: int = 4, timeout: float = 60.0) -> None:
    """Call `main()` in `ranks` processes that have met nobody, with torchrun's variables set.

    torchrun starts a new Python for each, which imports torch for seconds. Here they come from
    `launch`, and leave its process group before `main` makes one of its own.
    """
    port = free_port()

    def be_started(group: Group) -> None:
        rank = str(group.rank)
        dist.destroy_process_group()
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        os.environ["MASTER_PORT"] = str(port)
        main()

    launch(be_started, ranks=ranks, timeout=timeout)


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
