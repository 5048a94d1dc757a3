"""ZeRO-2: ZeRO-1, and gradients are reduced in buckets while the backward pass still computes.

    dW[N·s]{partial over ranks}, a bucket → reduce_scatter(avg) → dW[s], the rest is freed

A rank keeps its shard of the gradients, and of the others no more than two buckets at any time
(Rajbhandari et al. 2020, §5.2). Each backward pass reduces, so accumulating costs messages, or, in
`no_sync()`, the memory that this stage saves.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.runtime.script import run_script
from distributed.zero.flat_unit import FlatUnit
from distributed.zero.guards import HookOfOriginal
from distributed.zero.reduce_in_backward import ReduceInBackward
from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.sharding_plan import Precision, ShardingPlan
from distributed.zero.stage1 import ReplicatedWeights


class Zero2(ShardedOptimizer):
    """Zero1 whose ranks keep a shard of the gradients; `bucket_bytes` is what is reduced at once.

    After a backward pass the mean of a gradient is in the shards, on all ranks. `parameter.grad` is
    a `SpreadGradient` then, which only has a shape.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group | None = None,
        *,
        param_groups: Sequence[dict[str, Any]] | None = None,
        partition: str = "flat",
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        bucket_bytes: int = 4_000_000,
        **settings: Any,
    ):
        precision = Precision(param_dtype, reduce_dtype)
        plan = ShardingPlan(module, optimizer_class, group, param_groups, partition, precision)
        weights = ReplicatedWeights(plan, bucket_bytes)
        gradients = ReduceInBackward(weights.units, AtOnce(), plan.names)
        super().__init__(plan, weights, gradients, settings)
        module.register_forward_hook(HookOfOriginal(gradients.post_forward))


class AtOnce:
    """Nothing but gradients is sent in a backward pass, so a unit's turn comes when it is full.

    A reentrant checkpoint, maybe of this rank alone, is a pass within the pass, and can give a
    parameter one more gradient: from then on units wait for the end.
    """

    def __init__(self) -> None:
        self.reset()

    def check(self, unit: FlatUnit, parameter: nn.Parameter) -> None: ...

    def pre_backward(self) -> None:
        self.task = torch._C._current_graph_task_id()

    def may_reduce(self, unit: FlatUnit) -> bool:
        self.has_inner |= torch._C._current_graph_task_id() != self.task
        return not self.has_inner

    def post_backward(self) -> None: ...

    def reset(self) -> None:
        self.task, self.has_inner = -1, False


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-2 learns what one device learns, and keeps a shard of the gradients."""
    from distributed.workbench.training import compare_with_one_device

    compare_with_one_device(Zero2, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
