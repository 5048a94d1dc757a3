"""Schedule of ZeRO-3: when a block is gathered, freed and reduced, in four hooks named as FSDP2's.

    pre_forward    gather the block, prefetch the next one, wait for the block
    post_forward   free it; the gradients of its outputs will call pre_backward
    pre_backward   end the turn of the block behind; gather this one, prefetch the one before, wait
    post_backward  free it; start to reduce its gradients

Collectives match by the order in which ranks call them. So in a forward pass all ranks call the
same blocks in the same order, and every backward pass goes back through these calls, whatever this
rank's own graph is: a gradient that a rank doesn't have counts as zero.

A checkpoint computes blocks again within the backward pass. That doesn't count as a call, and it
sends only what must be gathered again.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.runtime.hooks import call_last, parts_of
from distributed.zero.blocks import Block, BlockwiseWeights
from distributed.zero.guards import Hook
from distributed.zero.reduce_in_backward import GradientReducer
from distributed.zero.sharded import Gradients

UNSUPPORTED = {
    "late": "{name} got a gradient after its block's turn in the backward pass was over: use a "
    "block's parameters only in its forward pass",
    "view": "{name} returns a view of its parameters, and the next block is gathered over them: "
    "return a clone(), or give reshard_after_forward=False",
    "output": "{name} returns {kind}, in which no tensor is found, so its backward pass cannot be "
    "noticed: return tensors in tuples, dicts or a dataclass",
    "second derivative": "create_graph=True: a second derivative would read blocks that are "
    "resharded by then; give reshard_after_forward=False, or take Zero2",
    "transform": "torch.func transforms what a forward pass computes, and gathering cannot be "
    "transformed: use torch.autograd",
}
PLAIN = (type(None), int, float, str)  # a block may return these and no tensor


class Call(NamedTuple):
    """One call of a block in a forward pass. The backward pass has a turn for it."""

    block: Block
    sync: bool  # False within no_sync(): a backward pass through such calls alone reduces nothing


class Schedule(Gradients):
    """Calls of blocks in the forward pass, and their turns in the backward pass.

    calls     of this forward pass, or of the last one. The root's is the last, when it has returned
    recorded  whether calls are written down, because a backward pass can follow
    turns     calls through which the backward pass under way goes back
    position  the index in `turns` of the call that has its turn. All behind it had theirs;
              len(turns) if none has
    begin     the index of the first call with something trained, in it or in the root
    reduces   whether the backward pass has reached a call outside of no_sync()
    reduced   blocks that it has reduced
    last_turn block → its first call since a backward pass ended, in any forward pass
    unreduced blocks with a call or a gradient since they were reduced: it is to be done
    """

    def __init__(self, weights: BlockwiseWeights, names: Mapping[nn.Parameter, str]):
        self.root, self.blocks, self.names = weights.root, weights.blocks, names
        self.module_names = {one: name for name, one in weights.root.module.named_modules()}
        self.block_of = {p: block for block in weights.all() for p in block.views}
        self.trained = [unit for unit in weights.units if unit.layout.trainable]
        self.reducer = GradientReducer(self.trained, names, in_flight=1)
        self.board = self.trained[0].group.board
        self.refuse_second_derivative = any(block.takes_turns for block in weights.blocks)
        self.unreduced: set[Block] = set()
        self._clear()
        self.post_forward_hooks = []
        for block in weights.all():
            pre_forward = Hook(partial(self.pre_forward, block), refuses_copies=True)
            post_forward = Hook(partial(self.post_forward, block), refuses_copies=True)
            # Around all hooks that the module has: they may use its parameters.
            block.module.register_forward_pre_hook(pre_forward, prepend=True)
            self.post_forward_hooks.append(block.module.register_forward_hook(post_forward))

    def _clear(self) -> None:
        """No backward pass is under way, and none will go back through the calls noted here."""
        self.calls: list[Call] = []
        self.recorded = False
        self.task = -1
        self.turns: list[Call] = []
        self.last_turn: dict[Block, Call] = {}
        self.position, self.begin, self.reduces = 0, 0, False
        self.reduced: set[Block] = set()

    # --- the four hooks

    def pre_forward(self, block: Block, module: nn.Module, args: Any) -> None:
        """A block is about to compute: gather it, prefetch the next one, and wait for it."""
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(UNSUPPORTED["transform"])
        following = None
        if not self._is_recomputing():
            self._begin_call(block)
            following = self.blocks[block.index + 1 :]  # the root's index is -1
        with torch.no_grad():
            block.unshard()
            if following:
                self._prefetch(following[0], block)
            block.wait_for_unshard()

    def post_forward(self, block: Block, module: nn.Module, args: Any, output: Any) -> None:
        """A block has computed: free it, and listen for the gradients of what it returns."""
        tensors = [tensor for tensor in self._tensors_of(block, output) if tensor.requires_grad]
        if self._is_recomputing():
            calls, index = self.turns, self._find_call(block)
        else:
            self.recorded |= bool(tensors)
            if self.recorded:
                self.calls.append(Call(block, self.sync))
                self._expect(self.calls[-1])
            calls, index = self.calls, len(self.calls) - 1
            if not block.stays_after_forward:
                with torch.no_grad():
                    block.reshard()
        if index >= 0:
            for tensor in tensors:
                tensor.register_hook(partial(self.pre_backward, block, calls, index))

    def pre_backward(self, block: Block, calls: list[Call], index: int, _: torch.Tensor) -> None:
        """The gradient of a block's output is there: gather it, prefetch the one before, wait."""
        if torch.is_grad_enabled() and self.refuse_second_derivative:
            raise RuntimeError(UNSUPPORTED["second derivative"])
        with torch.no_grad():
            self._enter_backward(calls)
            self.reduces |= calls[index].sync
            if calls is self.turns and index > self.position:
                return  # another output of it was earlier, and its turn is over
            self._go_back_to(calls, index)
            block.wait_for_unshard()

    def post_backward(self, call: Call) -> None:
        """A turn is over: free the block, and start to reduce its gradients, unless it has more.

        The root is in use until the end, and what was called twice has a second turn.
        """
        block = call.block
        if block is self.root or self.last_turn.get(block) is not call:
            return
        if not block.stays_after_backward:
            block.reshard()
        if self.reduces:
            self._reduce(block)

    # --- the forward pass

    def _is_recomputing(self) -> bool:
        """Whether a forward pass that begins now is a checkpoint's, within the backward pass."""
        return self.task != -1 and torch._C._current_graph_task_id() != -1

    def _begin_call(self, block: Block) -> None:
        """The root begins a forward pass. ValueError where ranks call different blocks."""
        if block is self.root:
            self.calls, self.recorded = [], torch.is_grad_enabled()
            call_last(self.post_forward_hooks)
        if self.board:
            name = self.module_names[block.module]
            which = "the root" if block is self.root else f"block {block.index} ({name})"
            self.board.announce(f"all_gather for {which}")

    def _prefetch(self, block: Block, beside: Block) -> None:
        """Start to gather what is next while another block computes, if that can be."""
        if block.prefetch and block.buffer is not beside.buffer:
            block.unshard()

    def _expect(self, call: Call) -> None:
        """The gradients of this call are to be reduced, with those of later calls of the block."""
        self.last_turn.setdefault(call.block, call)
        self.unreduced.add(call.block)

    def _find_call(self, block: Block) -> int:
        """Index of the call that a checkpoint computes again: the last whose turn isn't over."""
        indices = range(min(self.position + 1, len(self.turns)))
        return max((i for i in indices if self.turns[i].block is block), default=-1)

    def _tensors_of(self, block: Block, output: Any) -> list[torch.Tensor]:
        """What a block returns. RuntimeError where its backward pass or its values are at risk."""
        tensors = [part for part in parts_of(output) if isinstance(part, torch.Tensor)]
        if not block.takes_turns:
            return tensors
        name = self.module_names[block.module]
        if not tensors and torch.is_grad_enabled() and not isinstance(output, PLAIN):
            raise RuntimeError(UNSUPPORTED["output"].format(name=name, kind=type(output).__name__))
        if any(block.is_view_of(tensor) for tensor in tensors):
            raise RuntimeError(UNSUPPORTED["view"].format(name=name))
        return tensors

    # --- the backward pass

    def _enter_backward(self, calls: list[Call]) -> None:
        """The backward pass begins, through these calls, unless it has begun."""
        if self.task == -1:
            self.begin_pass()
            self._turn_to(calls)

    def _turn_to(self, calls: list[Call]) -> None:
        """Go back through these calls from now on."""
        self.turns, self.position = calls, len(calls)
        trained = [self.root.is_trained or call.block.is_trained for call in calls]
        self.begin = [*trained, True].index(True)
        for call in calls:
            self._expect(call)

    def _go_back_to(self, calls: list[Call], index: int) -> None:
        """Give all calls down to this one their turn, whatever this rank's graph has of them."""
        if calls is not self.turns:  # of another forward pass, under one backward pass
            self._go_back_to(self.turns, -1)
            self._turn_to(calls)
        while self.position > index:
            if self.position < len(calls):
                self.post_backward(calls[self.position])
            self.position -= 1
            if self.position >= 0:
                self._begin_turn(calls[self.position].block)

    def _begin_turn(self, block: Block) -> None:
        """Start to gather a block, and prefetch the one that was called before it."""
        if self.position >= self.begin:
            block.unshard()
        if self.position > self.begin:
            self._prefetch(self.turns[self.position - 1].block, block)

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Gradients: autograd has finished this parameter's gradient, on this rank."""
        block = self.block_of[parameter]
        if self.task == -1:  # before that of any output, as the root's can be
            self._enter_backward(self.calls)
            self.reduces = self.calls[-1].sync if self.calls else self.sync
        if block in self.reduced:
            raise RuntimeError(UNSUPPORTED["late"].format(name=self.names[parameter]))
        self.unreduced.add(block)

    def _reduce(self, block: Block) -> None:
        """dW[N·s]{partial over ranks} of a block → dW[s], beside the backward pass."""
        self.unreduced.remove(block)
        self.last_turn.pop(block, None)
        self.reduced.add(block)
        for unit in block.units:
            if unit.layout.trainable:
                self.reducer.start(unit)

    def _reduce_rest(self) -> None:
        """Reduce what no turn has reduced: the root, and what is left of other forward passes."""
        for block in [*reversed(self.blocks), self.root]:
            if block in self.unreduced:
                self._reduce(block)
        self.reducer.wait()

    @torch.no_grad()
    def end_pass(self) -> None:
        """Gradients: give the last calls their turn, and reduce what is left."""
        self._go_back_to(self.turns, -1)
        if self.reduces:
            self._reduce_rest()
        self._clear()

    # --- what the optimizer calls

    def reduce(self) -> None:
        """Gradients: reduce what passes in no_sync() left. Blocks without a call get zeros."""
        self.reducer.check_unchanged()
        self._reduce_rest()
        for unit in self.trained:
            if unit.gradient is None:
                unit.gradient = torch.zeros_like(unit.shard)

    def reset(self) -> None:
        """Gradients: drop them; a backward pass that raised did so on every rank."""
        self.reducer.wait()
        self.reducer.is_spread.clear()
        self.unreduced.clear()
        self._clear()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return self.reducer.tensors()
