"""ZeRO-3, also called FSDP: a rank keeps a share of the parameters, and borrows the rest in turn.

    W[s], another share on each rank → all_gather → W[N·s], before a block's forward and backward
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s], after its backward

What is gathered stands in a *room*. Blocks take turns in two rooms: while one block computes, the
parameters of the next come in (Rajbhandari et al. 2020, §5.3; Zhao et al. 2023, §3).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed.group import Group
from distributed.materialise import by_reset_parameters, hide, leave_meta, make_real
from distributed.script import run_script
from distributed.shards import Unit, make_units
from distributed.zero1 import show
from distributed.zero2 import Zero2


class Room:
    """Memory for the gathered parameters of one block at a time, `holder`."""

    def __init__(self) -> None:
        self.flats: dict[Any, torch.Tensor] = {}
        self.holder: Block | None = None
        self.handles: list[Any] = []


class Block:
    """A module whose parameters come and go together: one unit for each dtype, and frozen or not.

    `index` counts blocks in the order of the forward pass; the root, with all that is in no other
    block, is -1.
    """

    def __init__(self, index: int, module: nn.Module, units: list[int], room: Room):
        self.index, self.module, self.units, self.room = index, module, units, room


class Zero3(Zero2):
    """Zero2 whose ranks keep a share of the parameters, too.

    `blocks` are the modules inside `module` that are gathered one after the other: by default the
    elements of its ModuleLists and Sequentials. What is in none of them, or in two (tied weights),
    belongs to the root, which is gathered for the whole step. With `prefetch`, the next block's
    parameters come while one computes. Without `reshard_after_forward`, each block keeps a room of
    its own, and is gathered once. Parameters on the meta device are made one block at a time by
    `initialise(module)`, for each module that has parameters.

    Outside of their block's turn parameters hold no numbers, only NaN: use `full_parameters()`.
    """

    ROOMS = 1  # for gradients: a block's have landed when the next block has computed

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group,
        *,
        blocks: Sequence[nn.Module] | None = None,
        prefetch: bool = True,
        reshard_after_forward: bool = True,
        initialise: Callable[[nn.Module], None] = by_reset_parameters,
        param_groups: Sequence[dict[str, Any]] | None = None,
        **settings: Any,
    ):
        self.modules = check_blocks(module, blocks)
        self.prefetch, self.reshard, self.initialise = prefetch, reshard_after_forward, initialise
        real = leave_meta(module, group.device)
        if param_groups:
            param_groups = [
                {**g, "params": [real.get(p, p) for p in g["params"]]} for g in param_groups
            ]
        self.unmade = set(real.values())
        super().__init__(module, optimizer_class, group, param_groups=param_groups, **settings)
        self._furnish()
        for block in [self.root, *self.blocks]:
            block.module.register_forward_pre_hook(lambda *_, b=block: self._before_forward(b))
            block.module.register_forward_hook(lambda m, x, y, b=block: self._after_forward(b, y))

    def _plan(self) -> list[Unit]:
        """The units of each block, last block first, and then the root's."""
        users: dict[nn.Parameter, list[int]] = {p: [] for p in self.names}
        for i, inner in enumerate(self.modules):
            for parameter in inner.parameters():
                users[parameter].append(i)
        shared = [Room() for _ in range(2 if self.prefetch else 1)]
        units: list[Unit] = []
        self.blocks: list[Block] = []
        for i in [*reversed(range(len(self.modules))), -1]:
            owned = [p for p, by in users.items() if (by if len(by) == 1 else [-1]) == [i]]
            made = make_units(owned, self.group.size, 1 << 62, self.partition, self._kind)
            places = [*range(len(units), len(units) + len(made))]
            room = shared[i % len(shared)] if self.reshard and i >= 0 else Room()
            block = Block(i, self.modules[i] if i >= 0 else self.module, places, room)
            self.blocks.insert(0, block)
            units += made
        self.root = self.blocks.pop(0)
        self.block_of = {i: b for b in [self.root, *self.blocks] for i in b.units}
        return units

    def _share_out(self, unit: Unit) -> torch.Tensor:
        """Copy rank 0's values of a unit, and keep this rank's W[s]."""
        make_real(self.module, self.unmade.intersection(unit.parameters), self.initialise)
        flat = torch.empty(unit.size, dtype=unit.dtype, device=self.group.device)
        unit.write({p: p.data for p in unit.parameters}, flat)
        self.group.broadcast(flat)
        share = self.group.empty(unit.share, unit.dtype)
        share.copy_(unit.of_rank(flat, self.group.rank))
        for parameter in unit.parameters:
            hide(parameter)
        return share

    def _furnish(self) -> None:
        """Make every room as large as the largest block that stays in it."""
        for block in [self.root, *self.blocks]:
            for i in block.units:
                unit = self.units[i]
                key, flats = (unit.dtype, unit.trainable), block.room.flats
                if key not in flats or len(flats[key]) < unit.size:
                    flats[key] = torch.empty(unit.size, dtype=unit.dtype, device=unit.device)

    def _call(self, block: Block) -> None:
        """Start to gather a block's parameters, unless they are here or on their way."""
        room = block.room
        if room.holder is block:
            return
        self._leave(room)
        room.holder = block
        for i in block.units:
            unit, share = self.units[i], self.shares[i]
            flat = room.flats[unit.dtype, unit.trainable][: unit.size]
            room.handles.append(self.group.all_gather(share, flat, async_op=self.prefetch))

    def _bring(self, block: Block) -> None:
        """Gather a block's parameters if need be, and let the module see them."""
        self._call(block)
        self._arrive(block.room)
        for i in block.units:
            unit = self.units[i]
            flat = block.room.flats[unit.dtype, unit.trainable]
            for parameter, view in unit.views(flat[: unit.size]).items():
                parameter.data = view

    def _arrive(self, room: Room) -> None:
        """Wait for what is on its way into a room."""
        for handle in room.handles if self.prefetch else ():
            handle.wait()
        room.handles = []

    def _leave(self, room: Room) -> None:
        """The parameters in a room are valid no longer."""
        self._arrive(room)  # called ahead, and not needed: it must not come later, over the next
        if room.holder:
            self._hide(room.holder)
        room.holder = None

    def _hide(self, block: Block) -> None:
        for i in block.units:
            for parameter in self.units[i].parameters:
                hide(parameter)

    def _call_ahead(self, index: int) -> None:
        """Start to gather the block that will be next, if its room is free."""
        if self.prefetch and 0 <= index < len(self.blocks):
            guest = self.blocks[index].room.holder
            busy = guest and self.in_backward and any(self.waiting.get(i) for i in guest.units)
            if not busy:
                self._call(self.blocks[index])

    @torch.no_grad()
    def _before_forward(self, block: Block) -> None:
        self._call(block)
        again = torch._C._current_graph_task_id() != -1  # a checkpoint, within the backward pass
        if not again:
            self._call_ahead(block.index + 1)
        self._bring(block)

    def _after_forward(self, block: Block, output: Any) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._before_backward(block))
        if block is not self.root:
            self._hide(block)

    @torch.no_grad()
    def _before_backward(self, block: Block) -> None:
        self._bring(block)
        if block is self.root:
            self._call_ahead(len(self.blocks) - 1)
        else:
            self._call_ahead(block.index - 1)

    def _came(self, parameter: nn.Parameter) -> None:
        block = self.block_of[self.unit_of[parameter]]
        if block.room.holder is not block:
            raise RuntimeError(
                f"{self.names[parameter]} got a gradient after its block had to leave: blocks must "
                "follow each other; give reshard_after_forward=False"
            )
        super()._came(parameter)

    def _finish(self) -> None:
        super()._finish()
        for block in [self.root, *self.blocks]:
            self._hide(block)

    def _publish(self) -> None:
        """Nothing to send: what is gathered from now on is new, and what is here is old."""
        for block in [self.root, *self.blocks]:
            self._leave(block.room)

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        rooms = {id(block.room): block.room for block in [self.root, *self.blocks]}
        gathered = [flat for room in rooms.values() for flat in room.flats.values()]
        return {**super().tensors(), "gathered": gathered}


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


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-3 learns what one device learns, and keeps a share of everything."""
    show(Zero3, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
