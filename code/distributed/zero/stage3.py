"""ZeRO-3, also called FSDP: a rank keeps a shard of the parameters, and gathers the rest in turn.

    W[s], another shard on each rank → all_gather → W[N·s], before a block's forward and backward
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s], after its backward

Blocks take turns in two buffers: while one block computes, the parameters of the next are gathered
(Rajbhandari et al. 2020, §5.3; Zhao et al. 2023, §3).

All ranks must gather and reduce in one order: `execution_order.py` says which. A rank that leaves
a block out takes part in its collectives all the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed import Group
from distributed.runtime.script import run_script
from distributed.zero.blocks import Block
from distributed.zero.blockwise_weights import BlockwiseWeights, check_blocks
from distributed.zero.execution_order import (
    OUT_OF_ORDER,
    BackwardPass,
    BackwardState,
    ExecutionOrder,
    ForwardPass,
)
from distributed.zero.materialise import by_reset_parameters, leave_meta, materialise
from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.sharding_plan import Precision, ShardingPlan, check_are_groups, check_module

REFUSED = {
    "order": OUT_OF_ORDER,
    "view": "{name} returns a view of its parameters, and the next block is gathered over them: "
    "return a clone(), or give reshard_after_forward=False",
    "output": "{name} returns {kind}, in which no tensor is found, so its backward pass cannot be "
    "noticed: return tensors in tuples, dicts or a dataclass",
    "second derivative": "create_graph=True: a second derivative would read blocks that are "
    "resharded by then; give reshard_after_forward=False, or take Zero2",
    "failed": "the last backward pass raised: call zero_grad() of the optimizer, which drops what "
    "that pass has reduced, and begin the step anew",
    "state dict": "a module of ZeRO-3 has no values between its passes: use checkpoint.save and "
    "checkpoint.load, or full_parameters()",
    "transform": "torch.func transforms what a forward pass computes, and gathering cannot be "
    "transformed: use torch.autograd",
}
PLAIN = (type(None), int, float, str)  # a block may return these and no tensor


class Zero3(ShardedOptimizer):
    """Zero2 whose ranks keep a shard of the parameters, too.

    `blocks` are the modules inside `module` that are gathered one after the other: by default the
    elements of its ModuleLists and Sequentials. What is in none of them, or in two (tied weights),
    belongs to the root, which is gathered for the whole step. With `prefetch`, the next block's
    parameters are gathered while one computes. Without `reshard_after_forward`, each block keeps a
    buffer of its own, and is gathered once. What is on the meta device is made one block at a time
    by `initialise(module)`, for each module that has parameters or buffers.

    Where a block is sharded its parameters hold no values, only NaN: use `full_parameters()`. After
    a backward pass `parameter.grad` only has a shape: its mean is in the shards, on all ranks.

    A rank can leave out blocks, or parameters of a block, that others use: it gathers and reduces
    with them, and its missing gradients are zeros. What all ranks must do alike: call a block twice
    in a pass, call blocks in another order than that of `blocks`, checkpoint several blocks as one,
    and, where one is checkpointed with `use_reentrant=True`, leave anything out. Ranks that differ
    in these call other collectives: an error, or a wait until the group's timeout. Evaluate within
    `torch.no_grad()`, or the next backward pass goes back through that forward pass, too.

    Raises RuntimeError where it would otherwise compute with another block's parameters, with a
    line of `REFUSED`. What comes to a block's parameters by a way that is not noticed is autograd's
    error, "modified by an inplace operation", in the backward pass; so is, as on one device, a
    backward pass through what was computed before the last step.
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
        schedule = Schedule(weights, plan.names)
        super().__init__(plan, weights, schedule.backward.gradients, settings)
        self.blocks, self.root = weights.blocks, weights.root


class Schedule:
    """Gathers each block before its forward pass and before its backward pass, by hooks.

    Which blocks a rank gathers when, and with which others, say `forward` and `backward`.
    """

    def __init__(self, weights: BlockwiseWeights, names: Mapping[nn.Parameter, str]):
        self.module_names = {one: name for name, one in weights.root.module.named_modules()}
        self.refuse_second_derivative = any(block.takes_turns for block in weights.blocks)
        self.forward = ForwardPass(weights.root, weights.blocks)
        self.backward = BackwardPass(self.forward, weights.units, names)
        for block in weights.all():
            block.module.register_state_dict_pre_hook(refuse_state_dict)
            block.module.register_load_state_dict_pre_hook(refuse_to_load)
            # torch.compile leaves these two as they are, and compiles what is between them.
            pre_forward = torch.compiler.disable(partial(self.pre_forward, block))
            post_forward = torch.compiler.disable(partial(self.post_forward, block))
            # Before all hooks that the module has: they may use its parameters.
            block.module.register_forward_pre_hook(pre_forward, prepend=True)
            block.module.register_forward_hook(post_forward)

    def pre_forward(self, block: Block, module: nn.Module, args: Any) -> None:
        """A block is about to compute: unshard it, and prefetch the next."""
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(REFUSED["transform"])
        grad_mode = torch.is_grad_enabled()
        with torch.no_grad():
            if self.backward.is_recomputing():
                self.backward.pre_recompute(block)
            elif self.backward.state is BackwardState.BACKWARD and grad_mode:
                raise RuntimeError(REFUSED["failed"])
            else:
                self.forward.pre_forward(block, grad_mode)
            block.wait_for_unshard()

    def post_forward(self, block: Block, module: nn.Module, args: Any, output: Any) -> None:
        """A block has computed: when the gradient of its output is there, its turn comes again."""
        if self.backward.is_recomputing():
            order, position = self.backward.order, self.backward.position_of(block)
        else:
            with torch.no_grad():
                position = self.forward.post_forward(block)
            order = self.forward.order
        pre_backward = partial(self.pre_backward, block, order, position)
        for tensor in self._tensors_of(block, output):
            if tensor.requires_grad:
                tensor.register_hook(pre_backward)

    def _tensors_of(self, block: Block, output: Any) -> list[torch.Tensor]:
        """What a block returns. RuntimeError where its backward pass or its values are at risk."""
        tensors = [*tensors_in(output)]
        if not block.takes_turns:
            return tensors
        name = self.module_names[block.module]
        if not tensors and torch.is_grad_enabled() and not isinstance(output, PLAIN):
            raise RuntimeError(REFUSED["output"].format(name=name, kind=type(output).__name__))
        if any(block.is_view_of(tensor) for tensor in tensors):
            raise RuntimeError(REFUSED["view"].format(name=name))
        return tensors

    def pre_backward(
        self, block: Block, order: ExecutionOrder, position: int, gradient: torch.Tensor
    ) -> None:
        """The gradient of a block's output is there: its backward pass is next."""
        if torch.is_grad_enabled() and self.refuse_second_derivative:
            raise RuntimeError(REFUSED["second derivative"])
        with torch.no_grad():
            self.backward.pre_block_backward(block, order, position)


def refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """Called before `state_dict()`, which may ask for parameters, but not for their values."""
    if not keep_vars:
        raise RuntimeError(REFUSED["state dict"])


def refuse_to_load(*_: Any) -> None:
    """Called before `load_state_dict()`."""
    raise RuntimeError(REFUSED["state dict"])


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Tensors in tuples, lists, dicts, dataclasses, and what else torch.utils._pytree knows."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif is_dataclass(leaf):
            for field in fields(leaf):
                yield from tensors_in(getattr(leaf, field.name))


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-3 learns what one device learns, and keeps a shard of everything."""
    from distributed.workbench.training import compare_with_one_device

    compare_with_one_device(Zero3, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
