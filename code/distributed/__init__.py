"""What is taught: one idea, one module. `from distributed import launch` is enough.

A module uses its own chapter's and those before, and `runtime`; in reading order:

First steps: single_device, launching, dp.
Collectives: all_reduce, halving_doubling, collectives, ring_group, shared_buffers, hierarchical,
    shared_memory, double_tree.
DDP: replicas, simple_ddp, overlapped_ddp, bucketed_ddp, accumulation, ddp, usage, sampler, join,
    batchnorm, train_text.
Training well: large_batch, precision, compressors, one_bit, powersgd, local_sgd, async_sgd, stale.
ZeRO: model_states, zero1, flat_unit, sharding_plan, guards, sharded, zero2, reduce_in_backward,
    blocks, zero3, materialise, blockwise_weights, execution_order, traffic, hsdp, boxes,
    checkpoint, checkpoint_folder.
At scale: cost, scaling, plan, strategy, tensor_parallel, pipeline_parallel, checkpoint_interval,
    elastic.

What each is about says README.md beside this file. `runtime` carries these modules, `workbench` has
what they are tried on, `planner` models what they cost and `instruments` measures it. The names
below come when they are first asked for, because the models of cost run where there is no torch.
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
    """Python asks for what the package has not got: one of the names above, at its first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(HOMES[name]), name))
