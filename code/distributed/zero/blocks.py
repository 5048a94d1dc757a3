"""Blocks of parameters that are whole for a while: unsharded, used, resharded.

    SHARDED ── unshard ──→ GATHERING ── wait_for_unshard ──→ UNSHARDED
       ↑                       │                                 │
       └────── reshard ────────┴──────────── reshard ────────────┘

A model is cut into blocks: parameters of one module belong to its block, and those of no module or
of two to the root, which is whole for a step. All other blocks take turns in one buffer or two,
and these are all the memory that ZeRO-3 needs for whole parameters, whatever the model's size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.zero.flat_unit import MOVED, FlatUnit, Layout, placeholder
from distributed.zero.guards import ShardedParameter
from distributed.zero.sharded import Weights, layouts
from distributed.zero.sharding_plan import ShardingPlan

WRITTEN = (
    "{name} was written in place, and the next all-gather would undo it: freeze it, or write into "
    "the optimizer's shards, and call its shards_changed() on all ranks"
)


class BlockState(Enum):
    """Place of a block's parameters."""

    SHARDED = auto()  # only W[s] is here: the module's parameters are NaN
    GATHERING = auto()  # an all-gather writes W[N·s] into the buffer; the parameters are NaN
    UNSHARDED = auto()  # the parameters are views of W[N·s] in the buffer


TRANSITIONS = {
    (BlockState.SHARDED, BlockState.GATHERING),
    (BlockState.GATHERING, BlockState.UNSHARDED),
    (BlockState.GATHERING, BlockState.SHARDED),
    (BlockState.UNSHARDED, BlockState.SHARDED),
}


class Buffer:
    """Memory for W[N·s] of one block at a time: `block`, which is GATHERING or UNSHARDED.

    One array for each dtype, and one for what is frozen, as long as the longest unit.
    """

    def __init__(self) -> None:
        self.full: dict[tuple[torch.dtype, bool], torch.Tensor] = {}
        self.block: Block | None = None

    def allocate(self, layouts: Sequence[Layout], device: torch.device) -> None:
        """Make it large enough for each of these."""
        for layout in layouts:
            key = layout.dtype, layout.trainable
            if key not in self.full or len(self.full[key]) < layout.size:
                self.full[key] = torch.empty(layout.size, dtype=layout.param_dtype, device=device)

    def full_of(self, layout: Layout) -> torch.Tensor:
        """W[N·s] of a layout, in this buffer's memory."""
        return self.full[layout.dtype, layout.trainable][: layout.size]


class Block:
    """A module whose parameters are unsharded and resharded together.

    It has one unit for each dtype, and one more for what is frozen. `index` counts blocks in the
    order of the forward pass; the root's is -1. The schedule decides what happens when, by these:

    prefetch              gathering is asynchronous, so it can begin early
    takes_turns           the buffer is also other blocks'
    stays_after_forward   it isn't freed after a forward pass, because the backward pass begins here
    stays_after_backward  it isn't freed after a backward pass: the next forward pass begins here
    is_trained            something in it is

    Invariant: autograd saves views of W[N·s] in the forward pass, and reads them in the backward
    pass. So a block is always gathered into the same memory: `full` is made once, and never again.
    Parameters have the version that autograd saved only while those very values are there, so it
    raises RuntimeError rather than read those of a different block or a later step. Only the block
    may move a parameter or write into it: else RuntimeError, with its name.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        units: list[FlatUnit],
        buffer: Buffer,
        prefetch: bool,
        names: Mapping[nn.Parameter, str],
    ):
        self.index, self.module, self.units = index, module, units
        self.buffer, self.prefetch, self.names = buffer, prefetch, names
        self.takes_turns = False
        self.is_trained = any(unit.layout.trainable for unit in units)
        self.stays_after_forward = self.stays_after_backward = True
        self.full = {unit: buffer.full_of(unit.layout) for unit in units}
        self.views: dict[nn.Parameter, torch.Tensor] = {}  # of W[N·s]: UNSHARDED
        for unit, full in self.full.items():
            self.views |= unit.layout.views(full)
        self.placeholders = {p: p.data for p in self.views}  # NaN: otherwise
        self.plain = [p for p in self.views if type(p) is nn.Parameter]
        for parameter in self.plain:
            parameter.name_in_module = names[parameter]  # type: ignore[attr-defined]
        self.state = BlockState.SHARDED
        self.handles: list[Any] = []  # of all-gathers under way: GATHERING only
        # Of the parameters while UNSHARDED; one more while they are NaN.
        self.version = 1 + max((parameter._version for parameter in self.views), default=0)
        self._show_placeholders()

    def _enter(self, state: BlockState) -> None:
        assert (self.state, state) in TRANSITIONS, f"{self.state} → {state}"
        self.state = state

    def unshard(self) -> None:
        """SHARDED → GATHERING. Otherwise nothing: W[N·s] is here or on its way."""
        if self.state is not BlockState.SHARDED:
            return
        if self.buffer.block:  # blocks aren't called in their order
            self.buffer.block.reshard()
        self.buffer.block = self
        for unit, full in self.full.items():
            handle = unit.all_gather(full, async_op=self.prefetch)
            if self.prefetch:
                self.handles.append(handle)
        self._enter(BlockState.GATHERING)

    def wait_for_unshard(self) -> None:
        """→ UNSHARDED, whatever it was: the module sees its parameters."""
        self.unshard()
        if self.state is BlockState.GATHERING:
            self._wait()
            self.check_untouched()
            self._show(self.views, self.version, nn.Parameter)
            self._enter(BlockState.UNSHARDED)

    def reshard(self) -> None:
        """→ SHARDED, whatever it was: the buffer is free, and what it holds is old."""
        if self.state is BlockState.SHARDED:
            return
        self._wait()  # prefetched, and not used: it must not be written later, over the next one
        if self.state is BlockState.UNSHARDED:
            self.check_untouched()
            self._show_placeholders()
        self.buffer.block = None
        self._enter(BlockState.SHARDED)

    def invalidate(self) -> None:
        """→ SHARDED, and what autograd has saved of W[N·s] is of no use: W[s] has changed."""
        self.reshard()
        self.version += 2
        self._show_placeholders()

    def _show(
        self,
        values: Mapping[nn.Parameter, torch.Tensor],
        version: int,
        kind: type[nn.Parameter],
    ) -> None:
        """Let the module see these: its parameters become views of them, and of this class."""
        with torch._C.DisableTorchFunctionSubclass():
            for parameter, value in values.items():
                parameter.data = value
            versions = (version,) * len(values)
            torch._C._autograd._unsafe_set_version_counter(tuple(values), versions)
        for parameter in self.plain:
            parameter.__class__ = kind

    def _show_placeholders(self) -> None:
        self._show(self.placeholders, self.version + 1, ShardedParameter)

    def check_untouched(self) -> None:
        """RuntimeError where a parameter is not what was shown, or was written into."""
        unsharded = self.state is BlockState.UNSHARDED
        version = self.version if unsharded else self.version + 1
        with torch._C.DisableTorchFunctionSubclass():
            for parameter, shown in (self.views if unsharded else self.placeholders).items():
                if parameter.data_ptr() != shown.data_ptr():
                    raise RuntimeError(MOVED.format(name=self.names[parameter]))
                if parameter._version != version:
                    raise RuntimeError(WRITTEN.format(name=self.names[parameter]))

    def is_view_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shows W[N·s]."""
        if tensor.layout is not torch.strided:
            return False
        memory = tensor.untyped_storage().data_ptr()
        return any(memory == full.untyped_storage().data_ptr() for full in self.full.values())

    def _wait(self) -> None:
        for handle in self.handles:
            handle.wait()
        self.handles = []


class BlockwiseWeights(Weights):
    """W[s] of each unit; W[N·s] of a block only in its turn, and of the root for a whole step.

    `units` are in the order in which their gradients are complete: the last block's first, and the
    root's at the end.
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
        owned = owners(plan, modules)  # by number of a module, the root's -1 first
        sharded = partial(shard, group=plan.group, make=make)
        units = {i: [sharded(one) for one in layouts(plan, owned[i])] for i in reversed(owned)}
        self.units = [unit for of_block in units.values() for unit in of_block]
        turns = [Buffer(), Buffer()] if prefetch else [Buffer()]
        buffers = {i: Buffer() for i in owned}
        if reshard_after_forward:
            buffers |= {i: turns[i % len(turns)] for i in range(len(modules))}
        for i, buffer in buffers.items():
            buffer.allocate([unit.layout for unit in units[i]], plan.group.device)
        self.buffers = {*buffers.values()}
        self.root, *self.blocks = (
            Block(i, module, units[i], buffers[i], prefetch, plan.names)
            for i, module in enumerate([plan.module, *modules], start=-1)
        )
        for block in self.blocks if reshard_after_forward else []:
            block.takes_turns = True
            block.stays_after_forward = block.index >= len(modules) - len(turns)
            block.stays_after_backward = block.index < len(turns)

    def all(self) -> list[Block]:
        """In the order of the forward pass."""
        return [self.root, *self.blocks]

    def check_or_read_params(self) -> None:
        """Nothing to take: writing into a parameter raises RuntimeError here."""
        for block in self.all():
            block.check_untouched()

    def shards_changed(self) -> None:
        """Nothing is sent: what is gathered from now on is new, and what is here is old."""
        for block in self.all():
            block.invalidate()

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
    layout.broadcast(full, group)
    kept = group.empty(layout.shard_size, layout.dtype)
    kept.copy_(layout.shard(full, group.rank))
    for parameter in layout.parameters:
        parameter.data = placeholder(parameter, layout.param_dtype, parameter.device)
    return FlatUnit(layout, group, kept)


def called(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules of a part that have a forward pass, as a ModuleList has none."""
    if type(part).forward is nn.Module.forward:
        yield from (inner for child in part.children() for inner in called(child))
    else:
        yield part


def check_blocks(module: nn.Module, blocks: Sequence[nn.Module] | None) -> list[nn.Module]:
    """The blocks, in the order of the forward pass; ValueError for what cannot be one."""
    inside = {inner: name for name, inner in module.named_modules()}
    if blocks is None:
        lists = [m for m in inside if isinstance(m, nn.ModuleList | nn.Sequential)]
        found = dict.fromkeys(m for one in lists for part in one for m in called(part))
        blocks = [m for m in found if any(True for _ in m.parameters())]
        blocks = [b for b in blocks if not any(b is not o and b in o.modules() for o in blocks)]
    for block in blocks:
        if block not in inside or block is module:
            raise ValueError(f"blocks: {type(block).__name__} is not inside of the module")
        if sum(block in other.modules() for other in blocks) > 1:
            raise ValueError(f"blocks: {inside[block]} is in another block, too, or given twice")
    return list(blocks)
