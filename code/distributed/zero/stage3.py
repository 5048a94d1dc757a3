"""ZeRO-3, also called FSDP, and HSDP: a rank keeps a shard of the parameters, and gathers blocks.

The lessons `zero3.py` and `hsdp.py` gather within the autograd graph. Here hooks gather, so blocks
take turns in two buffers: while one computes, the parameters of the next are gathered.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.replicas import check_same_model
from distributed.zero.blocks import BlockwiseWeights, check_blocks
from distributed.zero.materialise import by_reset_parameters, leave_meta, materialise
from distributed.zero.schedule import Schedule
from distributed.zero.sharded import GradientPhase, ShardedOptimizer
from distributed.zero.sharding_plan import Precision, ShardingPlan

STATE_DICT = (
    "a module of ZeRO-3 has no values between its passes: use checkpoint.save and "
    "checkpoint.load, or full_parameters()"
)


class Zero3(ShardedOptimizer):
    """Zero2 whose ranks keep a shard of the parameters, too.

    `blocks` are the modules inside `module` that are gathered one after the other: by default the
    outermost modules with a forward pass in its ModuleLists and Sequentials. Parameters of no
    block, or of two (tied weights), belong to the root, which is gathered for the whole step. With
    `prefetch`, the next block's parameters are gathered while one computes. Without
    `reshard_after_forward`, each block has its own buffer, and is gathered once. A model on the
    meta device is made one block at a time by `initialise(module)`, for each module that has
    parameters or buffers, and fills only these, not those of modules inside. Parameters of a
    sharded block hold no values: use `full_parameters()`. After a backward pass `parameter.grad`
    only has a shape: its mean is in all ranks' shards.

    In a forward pass all ranks must call the same blocks in the same order; with a board, ranks
    that don't get a ValueError with the block and the rank. On a rank that has any gradient, one
    that is missing counts as zero, except in a block that is checkpointed with
    `use_reentrant=True`. A pass that raises must do so on all ranks. Evaluate within
    `torch.no_grad()`, or whole gradients stay to the end of the next backward pass, because the
    evaluation could get one as well.

    Raises RuntimeError if it would otherwise compute with parameters of a different block, at the
    latest autograd's "modified by an inplace operation".
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group | None = None,
        *,
        blocks: Sequence[nn.Module] | None = None,
        prefetch: bool = True,
        reshard_after_forward: bool = True,
        initialise: Callable[[nn.Module], None] = by_reset_parameters,
        param_groups: Sequence[dict[str, Any]] | None = None,
        partition: str = "flat",
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        **settings: Any,
    ):
        precision = Precision(param_dtype, reduce_dtype)
        plan = ShardingPlan(module, optimizer_class, group, param_groups, partition, precision)
        plan.check_settings(settings)
        modules = check_blocks(module, blocks)
        unmade = leave_meta(module, plan.group.device)

        def make(tensors: Iterable[torch.Tensor]) -> None:
            materialise(module, unmade.intersection(tensors), initialise)

        make(module.buffers())
        weights = BlockwiseWeights(plan, modules, prefetch, reshard_after_forward, make)
        super().__init__(plan, weights, Schedule(weights, plan.names), settings)
        self.blocks, self.root = weights.blocks, weights.root
        for block in weights.all():
            block.module.register_state_dict_pre_hook(refuse_state_dict)
            block.module.register_load_state_dict_pre_hook(refuse_to_load)


class HSDP(Zero3):
    """Zero3 over `group`, the ranks of one host; `replicas` hold what this rank holds.

    They are this rank's row and column of a mesh of hosts: see `mesh`. Between hosts only gradients
    travel, once a step ("hybrid sharding": Zhao et al. 2023, §3.2.2).
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group,
        replicas: Group,
        **settings: Any,
    ):
        check_same_model(module, replicas)
        super().__init__(module, optimizer_class, group, **settings)
        self.plan.check_same_groups(replicas)
        self.replicas = replicas
        for tensor in [*(unit.shard for unit in self.units), *self.in_no_unit(), *module.buffers()]:
            if tensor.numel():
                replicas.broadcast(tensor.data)  # the first host's

    def reduce(self) -> None:
        """dW[s]{partial over hosts} → dW[s], once a step, however many backward passes it has."""
        is_partial = self.phase is GradientPhase.PARTIAL
        super().reduce()
        if is_partial and self.replicas:
            means = [unit.reduced() for unit in self.trained]
            for handle in [self.replicas.all_reduce(mean, "avg", async_op=True) for mean in means]:
                handle.wait()


def refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """Called before `state_dict()`, which may ask for parameters, but not for their values."""
    if not keep_vars:
        raise RuntimeError(STATE_DICT)


def refuse_to_load(*_: Any) -> None:
    """Called before `load_state_dict()`."""
    raise RuntimeError(STATE_DICT)
