"""A model cut into blocks: W[s] of all of them, and W[N·s] of one at a time.

    parameters of one module → its block;  of no module, or of two → the root

The root is a block that takes no turns: it is whole for a step.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from distributed import Group
from distributed.zero.blocks import Block, Buffer
from distributed.zero.flat_unit import FlatUnit, Layout
from distributed.zero.materialise import free_values
from distributed.zero.sharded import layouts
from distributed.zero.sharding_plan import ShardingPlan


class BlockwiseWeights:
    """W[s] of each unit; W[N·s] of a block only in its turn, and of the root for a whole step.

    `units` are in the order in which their gradients are complete: the last block's first, and the
    root's, which holds what is in no block or in two, at the end.
    """

    def __init__(
        self,
        plan: ShardingPlan,
        modules: Sequence[nn.Module],
        prefetch: bool,
        reshard_after_forward: bool,
        make: Callable[[Sequence[nn.Parameter]], None],
    ):
        """`make(parameters)` gives parameters their first values, if they have none."""
        owned = owners(plan, modules)
        order = [*reversed(range(len(modules))), -1]
        sharded = partial(shard, group=plan.group, make=make)
        units = {i: [sharded(one) for one in layouts(plan, owned[i])] for i in order}
        buffers = {i: Buffer() for i in order}
        if reshard_after_forward:
            turns = [Buffer(), Buffer()] if prefetch else [Buffer()]
            buffers |= {i: turns[i % len(turns)] for i in range(len(modules))}
        for i in order:
            buffers[i].allocate([unit.layout for unit in units[i]], plan.group.device)
        made = partial(Block, prefetch=prefetch, names=plan.names)
        self.root = made(-1, plan.module, units[-1], buffers[-1], takes_turns=False)
        self.blocks = [
            made(i, inner, units[i], buffers[i], takes_turns=reshard_after_forward)
            for i, inner in enumerate(modules)
        ]  # in the order of the forward pass
        self.units = [unit for i in order for unit in units[i]]
        self.buffers = {*buffers.values()}
        trained = False
        for block in self.all():
            trained = trained or any(unit.layout.trainable for unit in block.units)
            block.in_backward = trained

    def all(self) -> list[Block]:
        return [self.root, *self.blocks]

    def collect(self) -> None:
        """Nothing: nobody can have written into what is sharded, or may into what is not."""
        for block in self.all():
            block.check_untouched()

    def refresh(self) -> None:
        """Nothing is sent: what is gathered from now on is new, and what is here is old."""
        for block in self.all():
            block.forget()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"gathered": [full for buffer in self.buffers for full in buffer.full.values()]}


def owners(plan: ShardingPlan, modules: Sequence[nn.Module]) -> dict[int, list[nn.Parameter]]:
    """Number of a module → the parameters that it alone has; -1 → the root's."""
    inside = [(i, part) for i, inner in enumerate(modules) for part in inner.modules()]
    in_blocks = {part for _, part in inside}
    outside = [(-1, part) for part in plan.module.modules() if part not in in_blocks]
    users: dict[nn.Parameter, set[int]] = {parameter: set() for parameter in plan.names}
    for i, part in [*inside, *outside]:
        for parameter in part.parameters(recurse=False):
            users[parameter].add(i)
    owned: dict[int, list[nn.Parameter]] = {i: [] for i in range(-1, len(modules))}
    for parameter, by in users.items():
        owned[by.pop() if len(by) == 1 else -1].append(parameter)
    return owned


def shard(layout: Layout, group: Group, make: Callable[[Sequence[nn.Parameter]], None]) -> FlatUnit:
    """Copy rank 0's values of some parameters, keep this rank's W[s], and free the rest."""
    make(layout.parameters)
    full = torch.empty(layout.size, dtype=layout.dtype, device=group.device)
    layout.write({p: p.data for p in layout.parameters}, full)
    group.broadcast(full)
    kept = group.empty(layout.shard_size, layout.dtype)
    kept.copy_(layout.shard(full, group.rank))
    for parameter in layout.parameters:
        free_values(parameter, layout.param_dtype)
    return FlatUnit(layout, group, kept)


def check_blocks(module: nn.Module, blocks: Sequence[nn.Module] | None) -> list[nn.Module]:
    """The blocks, in the order of the forward pass; ValueError for what cannot be one."""
    inside = {inner: name for name, inner in module.named_modules()}
    if blocks is None:
        lists = [m for m in inside if isinstance(m, nn.ModuleList | nn.Sequential)]
        blocks = [m for one in lists for m in one if any(True for _ in m.parameters())]
        blocks = [b for b in blocks if not any(b is not o and b in o.modules() for o in blocks)]
    for block in blocks:
        if block not in inside or block is module:
            raise ValueError(f"blocks: {type(block).__name__} is not inside of the module")
        if any(block is not other and block in other.modules() for other in blocks):
            raise ValueError(f"blocks: {inside[block]} is inside of another block")
    return list(blocks)
