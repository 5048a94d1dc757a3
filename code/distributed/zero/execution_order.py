"""In which order ZeRO-3 gathers and reduces blocks: one order, on every rank.

    forward    visit block 0, 1, …, n − 1: unshard each, and prefetch the one after it
    backward   the same visits from the last to the first: reduce the one behind, unshard, prefetch

Collectives match by the order in which ranks call them, and that order cannot be the one of a
rank's own graph: it may leave out a block that other ranks compute. So a forward pass visits every
block, computed here or not, and the backward pass goes back through these visits.

A backward pass can have forward passes inside, where a checkpoint computes blocks again. So there
are two small machines, and not one: `ForwardPass` writes the order, `BackwardPass` reads it.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import nn

from distributed.zero.blocks import Block, State
from distributed.zero.flat_unit import FlatUnit
from distributed.zero.reduce_in_backward import ReduceInBackward

OUT_OF_ORDER = (
    "{name} has a gradient after its block was resharded: blocks must follow each other, in the "
    "order of blocks=; or give reshard_after_forward=False"
)


class Visit(NamedTuple):
    """A block's turn in a forward pass: this rank computes it, or gathers it for those that do."""

    block: Block
    computed: bool


class ExecutionOrder:
    """The visits of all forward passes since the last backward pass: equal blocks on every rank."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.first: dict[Block, int] = {}  # index of a block's first visit, the last one back

    def append(self, visit: Visit) -> None:
        self.first.setdefault(visit.block, len(self.visits))
        self.visits.append(visit)

    def __len__(self) -> int:
        return len(self.visits)


def prefetch_unshard(block: Block) -> None:
    """Start to gather the block that will be next, if gathering is asynchronous."""
    if block.prefetch:
        block.unshard()


class ForwardState(Enum):
    EVALUATION = auto()  # no backward pass can follow: visits are not written down
    TRAINING = auto()  # one can: they are


class ForwardPass:
    """Lets blocks take turns in their order, those that this rank leaves out among them.

    state   TRAINING from the first block that is computed with autograd, until the root begins anew
    index   of the block whose turn is next; n where all had it, or outside of the root's pass,
            where blocks are called by themselves and none is left out
    order   the visits so far, for the next backward pass to go back through

    The root's pass sets state and index anew, so it may follow a pass that raised.
    """

    def __init__(self, root: Block, blocks: Sequence[Block]):
        self.root, self.blocks = root, blocks
        self.state, self.index = ForwardState.EVALUATION, len(blocks)
        self.order = ExecutionOrder()

    def pre_forward(self, block: Block, grad_mode: bool) -> None:
        """A block, or the root, is about to compute: start to gather it, and prefetch the next."""
        if block is self.root:
            self.state, self.index = ForwardState.EVALUATION, 0
        if grad_mode:
            self.state = ForwardState.TRAINING
        if block is self.root:
            self._unshard(block)
        else:
            self._visit_left_out(block.index)
            self._visit(block, computed=True)

    def post_forward(self, block: Block) -> int:
        """Where in `order` the backward pass will be when the block's output has its gradient."""
        if block is self.root:
            self._visit_left_out(len(self.blocks))
            return len(self.order)
        return len(self.order) - 1

    def _visit_left_out(self, until: int) -> None:
        """Other ranks may compute what this one leaves out: gather it with them."""
        for block in self.blocks[self.index : until]:
            self._visit(block, computed=False)

    def _visit(self, block: Block, computed: bool) -> None:
        self._unshard(block)
        self.index = max(self.index, block.index + 1)
        if self.state is ForwardState.TRAINING:
            self.order.append(Visit(block, computed))

    def _unshard(self, block: Block) -> None:
        block.unshard()
        if block.index + 1 < len(self.blocks):  # the root's index is -1: block 0 is after it
            prefetch_unshard(self.blocks[block.index + 1])


class BackwardState(Enum):
    IDLE = auto()  # no backward pass is under way
    BACKWARD = auto()  # since its first gradient; a forward pass now is one of a checkpoint


class BackwardPass:
    """Goes back through the visits of a forward pass, whatever this rank's graph has of them.

    state     IDLE ── start ──→ BACKWARD ── reset, at the end of the pass or by zero_grad ──→ IDLE
    order     in BACKWARD, the visits that it goes back through: the same on every rank
    position  in BACKWARD, the index in `order` of the visit that has its turn. All behind it had
              theirs, all before it have not. len(order): no turn has begun

    As a policy of `gradients` it says that a unit may be reduced in the last turn of its block.
    """

    def __init__(
        self,
        forward: ForwardPass,
        units: Sequence[FlatUnit],
        names: Mapping[nn.Parameter, str],
    ):
        self.forward, self.names = forward, names
        blocks = [forward.root, *forward.blocks]
        self.block_of = {unit: block for block in blocks for unit in block.units}
        self.reset()
        self.gradients = ReduceInBackward(units, self, names, in_flight=1)

    def reset(self) -> None:
        """Policy: → IDLE, and none can go back through the forward passes before."""
        self.state, self.order, self.position = BackwardState.IDLE, ExecutionOrder(), 0
        self.forward.order = ExecutionOrder()

    def start(self, order: ExecutionOrder) -> None:
        """IDLE → BACKWARD: a gradient is there, and with it the end of these visits."""
        assert self.state is BackwardState.IDLE
        self.state, self.order, self.position = BackwardState.BACKWARD, order, len(order)
        if order.visits and order.visits[-1].block.in_backward:
            prefetch_unshard(order.visits[-1].block)

    def pre_backward(self) -> None:
        """Policy: a gradient is ready before that of any block's output, as the root's can be."""
        if self.state is BackwardState.IDLE:
            self.start(self.forward.order)

    def pre_block_backward(self, block: Block, order: ExecutionOrder, position: int) -> None:
        """The gradient of a block's output is there: unshard it, as all ranks do then."""
        if self.state is BackwardState.IDLE:
            self.start(order)
        self.gradients.pre_backward()
        if order is self.order:
            if position > self.position:
                return  # another output of it was earlier, and its turn is over
            self._go_back_to(position)
        block.wait_for_unshard()

    def post_backward(self) -> None:
        """Policy: other ranks may have gone back further than this rank's graph does."""
        self._go_back_to(0)

    def _go_back_to(self, position: int) -> None:
        """Give all visits down to this one their turn, whatever this rank's graph has of them."""
        assert self.state is BackwardState.BACKWARD
        while self.position > position:
            if self.gradients.sync:
                self.gradients.reduce_in_order(only_complete=False)
            self.position -= 1
            self._begin_turn(self.order.visits[self.position].block)

    def _begin_turn(self, block: Block) -> None:
        """Expect a block's gradients, start to gather it, and prefetch the one before it."""
        for unit in block.units:
            if unit.layout.trainable:
                self.gradients.expect(unit)
        if block.in_backward:
            block.unshard()
        if self.position:
            ahead = self.order.visits[self.position - 1].block
            if ahead.in_backward and ahead.buffer is not block.buffer:
                prefetch_unshard(ahead)

    def may_reduce(self, unit: FlatUnit) -> bool:
        """Policy: this is the last turn of the unit's block, or it is over.

        The root has no turns: it is in use until the end.
        """
        assert self.state is BackwardState.BACKWARD
        return self.order.first.get(self.block_of[unit], -1) >= self.position

    def check(self, unit: FlatUnit, parameter: nn.Parameter) -> None:
        """Policy: a gradient that is ready after its turn would be in no rank's order."""
        is_over = self.gradients.sync and unit not in self.gradients.to_reduce
        if is_over or self.block_of[unit].state is State.SHARDED:
            raise RuntimeError(OUT_OF_ORDER.format(name=self.names[parameter]))

    # --- a checkpoint computes a block again, within the backward pass

    def is_recomputing(self) -> bool:
        """Whether a forward pass that begins now is a checkpoint's."""
        is_in_autograd = torch._C._current_graph_task_id() != -1
        return self.state is BackwardState.BACKWARD and is_in_autograd

    def position_of(self, block: Block) -> int:
        """The visit that a checkpoint computes again: the block's last one not yet behind us."""
        for position in reversed(range(min(self.position + 1, len(self.order)))):
            if self.order.visits[position].block is block:
                return position
        return len(self.order)

    def pre_recompute(self, block: Block) -> None:
        """Go back to the block, past what this rank left out behind it, as all ranks do.

        What this rank has computed, and lacks gradients of, is of the same checkpoint: it is next.
        """
        position = self.position_of(block)
        if all(self._is_done(one) for one in self.order.visits[position + 1 : self.position + 1]):
            self._go_back_to(position)

    def _is_done(self, visit: Visit) -> bool:
        """Whether this rank's graph expects no gradient of this block any more."""
        return not (visit.computed and any(map(self.gradients.missing.get, visit.block.units)))
