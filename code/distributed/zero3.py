"""ZeRO-3, also called FSDP: a rank keeps a share of the parameters, and borrows the rest in turn.

    W[s], another share on each rank → all_gather → W[N·s], before a block's forward and backward
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s], after its backward

What is gathered stands in a *room*. Blocks take turns in two rooms: while one block computes, the
parameters of the next come in (Rajbhandari et al. 2020, §5.3; Zhao et al. 2023, §3).

All ranks must gather and reduce in one order. It is that of the blocks, and not that of a rank's
own graph: a rank that leaves a block out takes part in its collectives all the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed import Group
from distributed.materialise import by_reset_parameters, hide, leave_meta, make_real
from distributed.runtime.script import run_script
from distributed.shards import Unit, make_units
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
    block, is -1. `learns` is whether the backward pass gets here: something is trained in this
    block, in one before it, or in the root.
    """

    def __init__(self, index: int, module: nn.Module, units: list[int], room: Room):
        self.index, self.module, self.units, self.room = index, module, units, room
        self.learns = True


class Zero3(Zero2):
    """Zero2 whose ranks keep a share of the parameters, too.

    `blocks` are the modules inside `module` that are gathered one after the other: by default the
    elements of its ModuleLists and Sequentials. What is in none of them, or in two (tied weights),
    belongs to the root, which is gathered for the whole step. With `prefetch`, the next block's
    parameters come while one computes. Without `reshard_after_forward`, each block keeps a room of
    its own, and is gathered once. Parameters on the meta device are made one block at a time by
    `initialise(module)`, for each module that has parameters.

    Outside of their block's turn parameters hold no numbers, only NaN: use `full_parameters()`.

    A rank can leave out blocks, or parameters of a block, that others use: it gathers and reduces
    with them, and its missing gradients are zeros. What all ranks must do alike: call a block twice
    in a pass, call blocks in another order than that of `blocks`, checkpoint several blocks as one,
    or one with `use_reentrant=True` and without prefetch. Evaluate within `torch.no_grad()`, or the
    next backward pass goes back through that forward pass, too.

    Raises RuntimeError in a backward pass where a gradient comes after its block's turn.
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
        self.expected = len(self.blocks)  # the block that comes next in a forward pass
        self.recording = False  # whether a backward pass can follow the forward pass
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
        learns = any(units[i].trainable for i in self.root.units)
        for block in self.blocks:
            learns = learns or any(units[i].trainable for i in block.units)
            block.learns = learns
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

    def _call_ahead(self, block: Block) -> None:
        """Start to gather the block that will be next."""
        if self.prefetch:
            self._call(block)

    def _get_ready(self) -> None:
        super()._get_ready()
        self.calls: list[Block] = []  # of the forward passes, in order: the same on every rank
        self.following: list[Block] | None = None  # the calls that the backward pass goes back
        self.place = 0  # in these: the backward pass is at this one, and past all behind it
        self.first: dict[Block, int] = {}  # where each block is called first, so comes back last

    def _before_forward(self, block: Block) -> None:
        again = self.in_backward and torch._C._current_graph_task_id() != -1
        grad_mode = torch.is_grad_enabled()
        with torch.no_grad():
            if not again:  # else it is a checkpoint, within the backward pass
                self._take_turn(block, grad_mode)
            self._bring(block)

    def _take_turn(self, block: Block, grad_mode: bool) -> None:
        """The forward pass comes to a block: before it, to those that this rank leaves out."""
        if block is self.root:
            self.expected, self.recording = 0, grad_mode
        else:
            self.recording |= grad_mode  # where a block is called by itself
            self._leave_out_until(block.index)
            self.expected = max(self.expected, block.index + 1)
        self._visit(block)

    def _leave_out_until(self, index: int) -> None:
        """Other ranks may compute what this one leaves out: gather it with them."""
        for block in self.blocks[self.expected : index]:
            self._visit(block)

    def _visit(self, block: Block) -> None:
        self._call(block)
        if block.index + 1 < len(self.blocks):
            self._call_ahead(self.blocks[block.index + 1])
        if self.recording and block is not self.root:
            self.calls.append(block)

    def _after_forward(self, block: Block, output: Any) -> None:
        if self.following is not None and torch._C._current_graph_task_id() != -1:
            calls, place = self.following, self._place_again(block)
        else:
            if block is self.root:
                with torch.no_grad():
                    self._leave_out_until(len(self.blocks))
                self.expected = len(self.blocks)
            calls = self.calls
            place = len(calls) if block is self.root else len(calls) - 1
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._before_backward(block, calls, place))
        if block is not self.root:
            self._hide(block)

    def _place_again(self, block: Block) -> int:
        """The place of a block that a checkpoint computes again."""
        assert self.following is not None
        places = [i for i, one in enumerate(self.following[: self.place + 1]) if one is block]
        return places[-1] if places else len(self.following)

    @torch.no_grad()
    def _before_backward(self, block: Block, calls: list[Block], place: int) -> None:
        """Called by autograd when the gradient of a block's output is there."""
        if self.following is None:
            self._follow(calls)
        self._begin()
        if calls is self.following:
            if place > self.place:
                return  # another output of it was earlier, and its turn is over
            self._go_back_to(place)
        self._bring(block)

    def _begin(self) -> None:
        if self.following is None:
            self._follow(self.calls)
        super()._begin()

    def _follow(self, calls: list[Block]) -> None:
        """Go back these calls from their end, in step with the other ranks."""
        self.following, self.place = calls, len(calls)
        self.first = {block: place for place, block in reversed([*enumerate(calls)])}
        if calls and calls[-1].learns:
            self._call_ahead(calls[-1])

    def _go_back_to(self, place: int) -> None:
        """Gather and reduce what lies between, whatever this rank's graph has of it."""
        assert self.following is not None
        while self.place > place:
            self._reduce_what_is_over()
            self.place -= 1
            block = self.following[self.place]
            if block.learns:
                self._call(block)
            ahead = self.following[self.place - 1] if self.place else block
            if ahead.learns and ahead.room is not block.room:
                self._call_ahead(ahead)

    def _reduce_what_is_over(self) -> None:
        """The gradients of the block that is left now; those that are missing are zeros."""
        if self.sync:
            for i in self.trained[self.left :]:
                if not self._may_leave(i):
                    break
                self._send_off(i)

    def _may_leave(self, i: int) -> bool:
        """Whether the backward pass is at a unit's block, or past it, for the last time."""
        block = self.block_of[i]
        return self.place == 0 if block is self.root else self.first.get(block, -1) >= self.place

    def _came(self, parameter: nn.Parameter) -> None:
        i = self.unit_of[parameter]
        over = self.sync and self.trained.index(i) < self.left
        if over or self.block_of[i].room.holder is not self.block_of[i]:
            raise RuntimeError(
                f"{self.names[parameter]} got a gradient after its block had to leave: blocks must "
                "follow each other, in the order of blocks=; or give reshard_after_forward=False"
            )
        super()._came(parameter)

    def _end(self) -> None:
        self._go_back_to(0)
        if self.sync:
            super()._end()
        else:
            self._get_ready()
            self._hide_all()

    def _finish(self) -> None:
        super()._finish()
        self._hide_all()

    def _hide_all(self) -> None:
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
    from distributed.zero1 import show

    show(Zero3, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
