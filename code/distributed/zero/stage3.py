"""ZeRO-3, also called FSDP: a rank keeps a shard of the parameters, and gathers the rest in turn.

    W[s], another shard on each rank → all_gather → W[N·s], before a block's forward and backward
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s], after its backward

Blocks take turns in two buffers: while one block computes, the parameters of the next are gathered
(Rajbhandari et al. 2020, §5.3; Zhao et al. 2023, §3). `schedule.py` says what happens when.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.zero.blocks import BlockwiseWeights, check_blocks
from distributed.zero.materialise import by_reset_parameters, leave_meta, materialise
from distributed.zero.schedule import Schedule
from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.sharding_plan import Precision, ShardingPlan, check_are_groups, check_module

STATE_DICT = (
    "a module of ZeRO-3 has no values between its passes: use checkpoint.save and "
    "checkpoint.load, or full_parameters()"
)


class Zero3(ShardedOptimizer):
    """Zero2 whose ranks keep a shard of the parameters, too.

    `blocks` are the modules inside `module` that are gathered one after the other: by default the
    elements of its ModuleLists and Sequentials. What is in none of them, or in two (tied weights),
    belongs to the root, which is gathered for the whole step. With `prefetch`, the next block's
    parameters are gathered while one computes. Without `reshard_after_forward`, each block keeps a
    buffer of its own, and is gathered once. What is on the meta device is made one block at a time
    by `initialise(module)`, for each module that has parameters or buffers.

    Where a block is sharded its parameters hold no values: use `full_parameters()`. After a
    backward pass `parameter.grad` only has a shape: its mean is in the shards, on all ranks.

    In a forward pass all ranks must call the same blocks in the same order, or get a line that
    names the block, if the group has a board. Blocks may change from pass to pass. A parameter of
    a block that was called counts as zero where a rank has no gradient for it; where a block is
    checkpointed with `use_reentrant=True`, ranks must also have the same gradients. A pass that
    raises must do so on all ranks. Evaluate within `torch.no_grad()`.

    Raises RuntimeError where it would otherwise compute with another block's parameters. What comes
    to a block's parameters by a way that is not noticed is autograd's error, "modified by an
    inplace operation", in the backward pass; so is, as on one device, a backward pass through what
    was computed before the last step.
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
        check_module(module)
        check_are_groups(param_groups)
        modules = check_blocks(module, blocks)
        group = group or Group.default()
        real = leave_meta(module, group.device)
        param_groups = [
            {**given, "params": [real.get(p, p) for p in given["params"]]}
            for given in param_groups or []
        ]
        precision = Precision(param_dtype, reduce_dtype)
        plan = ShardingPlan(module, optimizer_class, group, param_groups, partition, precision)
        unmade = {*real.values()}

        def make(tensors: Iterable[torch.Tensor]) -> None:
            materialise(module, unmade.intersection(tensors), initialise)

        make(module.buffers())
        weights = BlockwiseWeights(plan, modules, prefetch, reshard_after_forward, make)
        super().__init__(plan, weights, Schedule(weights, plan.names), settings)
        self.blocks, self.root = weights.blocks, weights.root
        for block in weights.all():
            block.module.register_state_dict_pre_hook(refuse_state_dict)
            block.module.register_load_state_dict_pre_hook(refuse_to_load)


def refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """Called before `state_dict()`, which may ask for parameters, but not for their values."""
    if not keep_vars:
        raise RuntimeError(STATE_DICT)


def refuse_to_load(*_: Any) -> None:
    """Called before `load_state_dict()`."""
    raise RuntimeError(STATE_DICT)
