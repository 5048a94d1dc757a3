"""ZeRO-3, also called FSDP: a rank keeps a shard of the parameters, and gathers the rest in turn.

    W[s], another shard on each rank → all_gather → W[N·s], before a block's forward and backward
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s], after its backward

Blocks take turns in two buffers: while one block computes, the parameters of the next are gathered
(Rajbhandari et al. 2020, §5.3; Zhao et al. 2023, §3).

All ranks must gather and reduce in one order. It is that of the blocks, and not that of a rank's
own graph: a rank that leaves a block out takes part in its collectives all the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed import Group
from distributed.blocks import Block, BlockwiseWeights, State, check_blocks
from distributed.flat_unit import FlatUnit
from distributed.materialise import by_reset_parameters, leave_meta, make_real
from distributed.runtime.script import run_script
from distributed.sharded import ShardedOptimizer
from distributed.sharding_plan import Plan, Precision, check_are_groups, check_module
from distributed.reduce_in_backward import ReduceInBackward

REFUSED = {
    "order": "{name} has a gradient after its block was resharded: blocks must follow each other, "
    "in the order of blocks=; or give reshard_after_forward=False",
    "view": "{name} returns a view of its parameters, and the next block takes their place: return "
    "a clone(), or give reshard_after_forward=False",
    "output": "{name} returns {kind}, in which no tensor is found, so its backward pass cannot be "
    "noticed: return tensors in tuples, dicts or a dataclass",
    "second derivative": "create_graph=True: a second derivative would read blocks that are "
    "resharded by then; give reshard_after_forward=False, or take Zero2",
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
    a backward pass `parameter.grad` is None: its mean is in the shards, on all ranks.

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
        plan = Plan(module, optimizer_class, group, param_groups, partition, precision)
        unmade = {*real.values()}

        def make(tensors: Iterable[torch.Tensor]) -> None:
            make_real(module, unmade.intersection(tensors), initialise)

        make(module.buffers())
        weights = BlockwiseWeights(plan, modules, prefetch, reshard_after_forward, make)
        schedule = Schedule(weights, plan.names)
        super().__init__(plan, weights, schedule.gradients, settings)
        self.blocks, self.root = weights.blocks, weights.root


class Visit(NamedTuple):
    """A block's place in a forward pass: this rank computes it, or gathers it for those that do."""

    block: Block
    computed: bool


class Schedule:
    """The order in which blocks are gathered and reduced: one order, on every rank.

    A forward pass visits all blocks, also those that this rank leaves out. The backward pass goes
    back through these visits, whatever this rank's graph has of them: at each one it reduces the
    gradients of the block before, and gathers. As a policy of `ReduceInBackward` it says that a
    unit may be reduced when the backward pass is at its block for the last time.
    """

    def __init__(self, weights: BlockwiseWeights, names: Mapping[nn.Parameter, str]):
        self.blocks, self.root, self.names = weights.blocks, weights.root, names
        self.module_names = {one: name for name, one in weights.root.module.named_modules()}
        self.block_of = {unit: block for block in weights.all() for unit in block.units}
        self.expected = len(self.blocks)  # index of the block that is next in a forward pass
        self.recording = False  # whether a backward pass can follow the forward pass
        self.gradients = ReduceInBackward(weights.units, self, names, in_flight=1)
        for block in weights.all():
            block.module.register_state_dict_pre_hook(refuse_state_dict)
            block.module.register_load_state_dict_pre_hook(refuse_to_load)
            # torch.compile leaves these two as they are, and compiles what is between them.
            pre_forward = torch.compiler.disable(partial(self.pre_forward, block))
            post_forward = torch.compiler.disable(partial(self.post_forward, block))
            # Before all hooks that the module has: they may use its parameters.
            block.module.register_forward_pre_hook(pre_forward, prepend=True)
            block.module.register_forward_hook(post_forward)

    def reset(self) -> None:
        """No backward pass is under way, and none can go back through old forward passes."""
        self.visits: list[Visit] = []  # of the forward passes, in order: the same on every rank
        self.going_back: list[Visit] | None = None  # the visits that the backward pass goes through
        self.place = 0  # in these: the backward pass is at this one, and past all behind it
        self.first: dict[Block, int] = {}  # where a block is visited first, so comes back last

    # --- the forward pass

    def pre_forward(self, block: Block, module: nn.Module, args: Any) -> None:
        """A block is about to compute: unshard it, and prefetch the next."""
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(REFUSED["transform"])
        grad_mode = torch.is_grad_enabled()
        with torch.no_grad():
            if self._is_checkpoint():
                self._go_back_past_left_out(block)
            else:
                self._take_turn(block, grad_mode)
            block.wait_for_unshard()

    def _is_checkpoint(self) -> bool:
        """Whether this forward pass computes a block again, within the backward pass."""
        return self.going_back is not None and torch._C._current_graph_task_id() != -1

    def _take_turn(self, block: Block, grad_mode: bool) -> None:
        """Visit a block, and before it those that this rank leaves out."""
        if block is self.root:
            self.expected, self.recording = 0, grad_mode
        else:
            self.recording |= grad_mode  # where a block is called by itself
            self._visit_until(block.index)
            self.expected = max(self.expected, block.index + 1)
        self._visit(block)

    def _visit_until(self, index: int) -> None:
        """Other ranks may compute what this one leaves out: gather it with them."""
        for block in self.blocks[self.expected : index]:
            self._visit(block, computed=False)

    def _visit(self, block: Block, computed: bool = True) -> None:
        block.unshard()
        if block.index + 1 < len(self.blocks):
            self._prefetch(self.blocks[block.index + 1])
        if self.recording and block is not self.root:
            self.visits.append(Visit(block, computed))

    def _prefetch(self, block: Block) -> None:
        """Start to gather the block that will be next."""
        if block.prefetch:
            block.unshard()

    def post_forward(self, block: Block, module: nn.Module, args: Any, output: Any) -> None:
        """A block has computed: when the gradient of its output is there, its turn comes again."""
        if self._is_checkpoint():
            assert self.going_back is not None
            visits, place = self.going_back, self._last_place(block)
        else:
            if block is self.root:
                with torch.no_grad():
                    self._visit_until(len(self.blocks))
                self.expected = len(self.blocks)
            visits = self.visits
            place = len(visits) if block is self.root else len(visits) - 1
        pre_backward = partial(self.pre_block_backward, block, visits, place)
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

    def _last_place(self, block: Block) -> int:
        """The visit of a block that a checkpoint computes again."""
        assert self.going_back is not None
        places = [
            i for i, one in enumerate(self.going_back[: self.place + 1]) if one.block is block
        ]
        return places[-1] if places else len(self.going_back)

    def _go_back_past_left_out(self, block: Block) -> None:
        """A checkpoint computes a block again: all ranks pass what this one left out behind it.

        What this rank has computed, and lacks gradients of, is of the same checkpoint: it is next.
        """
        assert self.going_back is not None
        place = self._last_place(block)
        if all(self._is_done(visit) for visit in self.going_back[place + 1 : self.place + 1]):
            self._go_back_to(place)

    def _is_done(self, visit: Visit) -> bool:
        """Whether this rank's graph has no gradient of this block that is yet to come."""
        return not (visit.computed and any(map(self.gradients.missing.get, visit.block.units)))

    # --- the backward pass

    def pre_block_backward(
        self, block: Block, visits: list[Visit], place: int, gradient: torch.Tensor
    ) -> None:
        """The gradient of a block's output is there: unshard it, as all ranks do at this place."""
        if torch.is_grad_enabled() and any(one.takes_turns for one in self.blocks):
            raise RuntimeError(REFUSED["second derivative"])
        with torch.no_grad():
            self._pre_block_backward(block, visits, place)

    def _pre_block_backward(self, block: Block, visits: list[Visit], place: int) -> None:
        if self.going_back is None:
            self._start_from(visits)
        self.gradients.pre_backward()
        if visits is self.going_back:
            if place > self.place:
                return  # another output of it was earlier, and its turn is over
            self._go_back_to(place)
        block.wait_for_unshard()

    def pre_backward(self) -> None:
        """Policy: a gradient is ready before that of any block's output, as the root's can be."""
        if self.going_back is None:
            self._start_from(self.visits)

    def _start_from(self, visits: list[Visit]) -> None:
        """Go back through these from their end, in step with the other ranks."""
        self.going_back, self.place = visits, len(visits)
        self.first = {visit.block: place for place, visit in reversed([*enumerate(visits)])}
        if visits and visits[-1].block.in_backward:
            self._prefetch(visits[-1].block)

    def _go_back_to(self, place: int) -> None:
        """Reduce and gather what lies between, whatever this rank's graph has of it."""
        assert self.going_back is not None
        while self.place > place:
            if self.gradients.sync:
                self.gradients.reduce_in_order(only_complete=False)
            self.place -= 1
            block = self.going_back[self.place].block
            for unit in block.units:
                if unit.layout.trainable:
                    self.gradients.expect(unit)
            if block.in_backward:
                block.unshard()
            if self.place:
                ahead = self.going_back[self.place - 1].block
                if ahead.in_backward and ahead.buffer is not block.buffer:
                    self._prefetch(ahead)

    def may_reduce(self, unit: FlatUnit) -> bool:
        """Policy: the backward pass is at this unit's block, or past it, for the last time.

        The root is in use until the end.
        """
        return self.first.get(self.block_of[unit], -1) >= self.place

    def check(self, unit: FlatUnit, parameter: nn.Parameter) -> None:
        """Policy: a gradient that is ready after its turn would be in no rank's order."""
        is_over = self.gradients.sync and unit not in self.gradients.to_reduce
        if is_over or self.block_of[unit].state is State.SHARDED:
            raise RuntimeError(REFUSED["order"].format(name=self.names[parameter]))

    def post_backward(self) -> None:
        """Policy: other ranks may have gone back further than this rank's graph does."""
        self._go_back_to(0)


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
    from distributed.zero1 import show

    show(Zero3, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
