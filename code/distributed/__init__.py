"""Lessons, a file each, and engines, a folder each. `from distributed import launch` is enough.

A lesson imports earlier lessons and `runtime`; in reading order:

First steps: single_device, launching, dp.
Collectives: all_reduce, halving_doubling, collectives, ring_group, two_levels.
DDP: replicas, simple_ddp, overlapped_ddp, bucketed_ddp, accumulation, sampler, batchnorm.
Training well: large_batch, precision, compressors, sign_and_low_rank, local_sgd, async_sgd.
ZeRO: model_states, zero1, zero2, zero3, lora, hsdp, checkpoint_folder.
Planning: scaling, cost, tensor_parallel, pipeline_parallel.
Running: memory_peak, find_bad_rank, checkpoint_interval, elastic.
Appendices: hierarchical, shared_memory, simple_all_reduces, trees.

README.md in this folder describes each of them. `ddp` and `zero` are the engines for a job:

    from distributed.ddp import DistributedDataParallel
    from distributed.zero import Zero1, Zero2, Zero3, HSDP

`runtime` starts ranks and carries their messages, `planner` predicts memory, bytes and time,
`instruments` measures them, `read_trace` reads a profiler's trace, and `workbench` has data,
networks and a training loop. The names below are imported at their first use, because the models
of cost run without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.launching import launch, world
    from distributed.runtime.group import Group

__all__ = ["Group", "launch", "world"]
HOMES = {
    "launch": "distributed.launching",
    "world": "distributed.launching",
    "Group": "distributed.runtime.group",
}


def __getattr__(name: str) -> Any:
    """Import one of the names above at its first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(HOMES[name]), name))
