"""Blocks of parameters that are whole for a while: unsharded, used, resharded.

    SHARDED ── unshard ──→ GATHERING ── wait_for_unshard ──→ UNSHARDED
       ↑                       │                                 │
       └────── reshard ────────┴──────────── reshard ────────────┘

A block's W[N·s] stands in a buffer in which blocks take turns. The buffers are all the memory that
ZeRO-3 needs for whole parameters, whatever the size of the model.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from distributed.zero.flat_unit import MOVED, FlatUnit, Layout

WRITTEN = (
    "{name} was written in place, and the next all-gather would undo it: write into the shards, "
    "between two steps, or freeze it"
)


class State(Enum):
    """Where the parameters of a block are."""

    SHARDED = auto()  # only W[s] is here: the module's parameters are NaN
    GATHERING = auto()  # an all-gather writes W[N·s] into the buffer; the parameters are NaN
    UNSHARDED = auto()  # the parameters are views of W[N·s] in the buffer


TRANSITIONS = {
    (State.SHARDED, State.GATHERING),
    (State.GATHERING, State.UNSHARDED),
    (State.GATHERING, State.SHARDED),
    (State.UNSHARDED, State.SHARDED),
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
    order of the forward pass; the root, with all that is in no other block, is -1. `in_backward`
    is whether the backward pass gets here: something is trained in this block, in one before it,
    or in the root. With `prefetch`, gathering is asynchronous. What `takes_turns` shares its buffer
    with other blocks.

    Invariant: autograd saves views of W[N·s] in the forward pass, and reads them in the backward
    pass. So a block is always gathered into the same memory: `full` is made once, and never again.
    Parameters have the version that autograd saved only while those very values are there: it
    raises RuntimeError rather than to read a buffer that another block is in, or a later step's.

    Nobody else may move a parameter, or write into it: RuntimeError, with its name in `names`.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        units: list[FlatUnit],
        buffer: Buffer,
        prefetch: bool,
        takes_turns: bool,
        names: Mapping[nn.Parameter, str],
    ):
        self.index, self.module, self.units = index, module, units
        self.buffer, self.prefetch, self.takes_turns = buffer, prefetch, takes_turns
        self.full = {unit: buffer.full_of(unit.layout) for unit in units}
        self.names = names
        self.views: dict[nn.Parameter, torch.Tensor] = {}  # of W[N·s]: UNSHARDED
        for unit, full in self.full.items():
            self.views |= unit.layout.views(full)
        self.placeholders = {p: p.data for p in self.views}  # NaN: otherwise
        self.in_backward = True
        self.state = State.SHARDED
        self.handles: list[Any] = []  # of all-gathers that nobody has waited for: GATHERING only
        # Of the parameters while UNSHARDED; one more while they are NaN.
        self.version = 1 + max((parameter._version for parameter in self.views), default=0)
        self._show(self.placeholders, self.version + 1)

    def _enter(self, state: State) -> None:
        assert (self.state, state) in TRANSITIONS, f"{self.state} → {state}"
        self.state = state

    def unshard(self) -> None:
        """SHARDED → GATHERING. Otherwise nothing: W[N·s] is here or on its way."""
        if self.state is not State.SHARDED:
            return
        if self.buffer.block:
            self.buffer.block.reshard()
        self.buffer.block = self
        for unit, full in self.full.items():
            handle = unit.all_gather(full, async_op=self.prefetch)
            if self.prefetch:
                self.handles.append(handle)
        self._enter(State.GATHERING)

    def wait_for_unshard(self) -> None:
        """→ UNSHARDED, whatever it was: the module sees its parameters."""
        self.unshard()
        if self.state is State.GATHERING:
            self._wait()
            self.check_untouched()
            self._show(self.views, self.version)
            self._enter(State.UNSHARDED)

    def reshard(self) -> None:
        """→ SHARDED, whatever it was: the buffer is free, and what it holds is old."""
        if self.state is State.SHARDED:
            return
        self._wait()  # prefetched, and not used: it must not be written later, over the next one
        if self.state is State.UNSHARDED:
            self.check_untouched()
            self._show(self.placeholders, self.version + 1)
        self.buffer.block = None
        self._enter(State.SHARDED)

    def forget(self) -> None:
        """→ SHARDED, and what autograd has saved of W[N·s] is of no use: W[s] has changed."""
        self.reshard()
        self.version += 2
        self._show(self.placeholders, self.version + 1)

    def _show(self, values: Mapping[nn.Parameter, torch.Tensor], version: int) -> None:
        """Let the module see these: its parameters become views of them."""
        for parameter, value in values.items():
            parameter.data = value
        versions = (version,) * len(values)
        torch._C._autograd._unsafe_set_version_counter(tuple(values), versions)

    def check_untouched(self) -> None:
        """RuntimeError where a parameter is not what was shown, or was written into."""
        unsharded = self.state is State.UNSHARDED
        version = self.version if unsharded else self.version + 1
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
