"""What is taught: one chapter of the book, one module. `from distributed import launch` is enough.

A module uses its own chapter's and those before, and `runtime`; in reading order:

First steps: single_device, world, dp.
Collectives: all_reduce, parts, halving_doubling, double_tree, shared_buffers, hierarchical,
    shared_memory, collectives, ring_group.
DDP: simple_ddp, overlapped_ddp, buckets, bucketed_ddp, ddp, usage, one_wrapper,
    gradient_sync_visualizer, sampler, join, accumulation, batchnorm, train_text.
Training well: large_batch, precision, compressors, one_bit, powersgd, local_sgd, async_sgd, stale.
ZeRO: model_states, zero1, flat_unit, sharding_plan, guards, sharded, zero2, reduce_in_backward,
    blocks, zero3, materialise, stages, traffic, blockwise_weights, execution_order, mesh, hsdp,
    boxes, checkpoint, checkpoint_folder.
At scale: cost, scaling, plan, strategy, tensor_parallel, pipeline_parallel, checkpoint_interval,
    elastic.

What each is about says README.md beside this file. `runtime` carries these modules, `workbench` has
what they are tried on, `planner` models what they cost and `instruments` measures it. The names
below come when they are first asked for, because the models of cost run where there is no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.runtime.group import Group
    from distributed.world import launch, world

__all__ = ["Group", "launch", "world"]
HOMES = {
    "launch": "distributed.world",
    "world": "distributed.world",
    "Group": "distributed.runtime.group",
}


class _Package(ModuleType):
    """`distributed.world` is the function, also after its module has been imported."""

    def __getattr__(self, name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(import_module(HOMES[name]), name)
        setattr(self, name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        is_module = isinstance(value, ModuleType)
        super().__setattr__(name, value.world if name == "world" and is_module else value)


sys.modules[__name__].__class__ = _Package
