"""The process that forks all ranks: it has imported torch and computes nothing.

Forking the caller itself would copy locks that its threads hold; a fresh Python for each rank
would import torch each time. Where there is no fork server (Windows), each rank is fresh.
"""

import multiprocessing
from typing import Any

# torch.optim imports torch._dynamo when first used: once here, and not again in every rank.
IMPORTED = ["distributed.rank", "torch._dynamo"]


def fork_server() -> Any:
    """The way ranks start, as a context of `multiprocessing`. This starts no process yet."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(IMPORTED)
    return context
