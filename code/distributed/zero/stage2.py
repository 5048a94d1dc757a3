"""ZeRO-2: ZeRO-1, and gradients are reduced in buckets while the backward pass still computes.

    dW[N·s]{partial over ranks}, a bucket → reduce_scatter(avg) → dW[s], the rest is freed

A rank keeps its shard of the gradients, and of the others no more than two buckets at any time
(Rajbhandari et al. 2020, §5.2). Each backward pass reduces, so accumulating costs messages, or, in
`no_sync()`, the memory that this stage saves.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed.zero.flat_unit import FlatUnit
from distributed.zero.guards import REFUSED, HookOfOriginal
from distributed.zero.reduce_in_backward import GradientReducer
from distributed.zero.sharded import Gradients
from distributed.zero.stage1 import ReplicatedWeights, Zero1


class Zero2(Zero1):
    """Zero1 whose ranks keep a shard of the gradients; `bucket_bytes` is the size of a bucket.

    After a backward pass the mean of a gradient is in the shards, on all ranks. `parameter.grad` is
    a `SpreadGradient` then, which only has a shape.
    """

    gradients: "ReduceFullBuckets"

    def __init__(self, *given: Any, bucket_bytes: int = 4_000_000, **settings: Any):
        super().__init__(*given, bucket_bytes=bucket_bytes, **settings)
        self.module.register_forward_hook(HookOfOriginal(self.gradients.post_forward))

    def make_gradients(self, weights: ReplicatedWeights) -> "ReduceFullBuckets":
        return ReduceFullBuckets(weights.units, weights.names)


class ReduceFullBuckets(Gradients):
    """dW[N·s] of a bucket is reduced when it is complete, and all buckets before it are reduced.

    was_synced  what `sync` was in the last forward pass
    is_local    whether passes in no_sync() have left gradients that are not reduced
    task        autograd's number of the backward pass; None if none is under way
    reduces     in a backward pass: whether it has reached a forward pass outside of no_sync()
    waits       in a backward pass: whether it has a reentrant checkpoint, a pass within the pass,
                which can give a parameter one more gradient: buckets then wait for the end
    missing     bucket → parameters whose gradients have not come in this pass
    to_reduce   buckets that are not reduced in this pass, in their order
    """

    def __init__(self, units: Sequence[FlatUnit], names: Mapping[nn.Parameter, str]):
        self.units, self.names = units, names
        self.unit_of = {p: unit for unit in units for p in unit.layout.parameters}
        self.reducer = GradientReducer(units, names, in_flight=2)
        self.was_synced = True
        self.is_local = False
        self._end_pass()

    def _end_pass(self) -> None:
        self.task: int | None = None
        self.reduces = self.waits = False
        self.missing = {unit: {*unit.layout.parameters} for unit in self.units}
        self.to_reduce = [*self.units]

    def post_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The module has computed: listen for the gradients of what it returns."""
        if not torch.is_grad_enabled():
            return
        self._check_not_failed()
        self.was_synced = self.sync
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(self.pre_backward, self.sync))

    def _check_not_failed(self) -> None:
        """RuntimeError if a backward pass began and hasn't come to its end, because it raised."""
        if self.task is not None and torch._C._current_graph_task_id() == -1:
            raise RuntimeError(REFUSED["failed"])

    def pre_backward(self, sync: bool, _: torch.Tensor | None = None) -> None:
        """The backward pass is here. It reduces if one of its forward passes was to."""
        if self.task is None:
            self.task = torch._C._current_graph_task_id()
            torch.autograd.Variable._execution_engine.queue_callback(self.post_backward)
        self.reduces |= sync

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Gradients: start to reduce the buckets that are complete with this one."""
        if self.task is None:  # before the gradient of any output
            self.pre_backward(self.sync and self.was_synced)
        unit = self.unit_of[parameter]
        if unit not in self.to_reduce:
            raise RuntimeError(
                f"{self.names[parameter]} got one more gradient after it was reduced: checkpoint "
                "with use_reentrant=False"
            )
        self.missing[unit].discard(parameter)
        self.waits |= torch._C._current_graph_task_id() != self.task
        while self.reduces and not self.waits and self.to_reduce:
            if self.missing[self.to_reduce[0]]:
                break
            self.reducer.start(self.to_reduce.pop(0))

    def post_backward(self) -> None:
        """Called by autograd at the end: reduce all other buckets. A missing gradient is zero."""
        # torch.autograd.grad gives parameters none at all.
        if any(len(self.missing[unit]) < len(unit.layout.parameters) for unit in self.units):
            if self.reduces:
                self._reduce_rest()
            self.is_local = not self.reduces
        self._end_pass()

    def _reduce_rest(self) -> None:
        while self.to_reduce:
            self.reducer.start(self.to_reduce.pop(0))
        self.reducer.wait()

    def reduce(self) -> None:
        """Gradients: reduce what passes in no_sync() have left."""
        self._check_not_failed()
        self.reducer.check_unchanged()
        if self.is_local:
            self._reduce_rest()
            self.is_local = False
            self._end_pass()

    def reset(self) -> None:
        """Gradients: drop them. If a pass raised, ranks may have sent more or less: send all."""
        if self.reduces:
            self._reduce_rest()
        self.reducer.is_spread.clear()
        self.is_local = False
        self._end_pass()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return self.reducer.tensors()
