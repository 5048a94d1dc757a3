"""ZeRO-2: the lesson `zero2.py` for any module, whatever a backward pass does.

A rank keeps its shard of the gradients, and of the others no more than two buckets at any time
(Rajbhandari et al. 2020, §5.2). Each backward pass reduces, so accumulating costs messages, or, in
`no_sync()`, the memory that this stage saves.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from distributed.zero.flat_unit import FlatUnit
from distributed.zero.reduce_in_backward import GradientReducer
from distributed.zero.sharded import Gradients
from distributed.zero.stage1 import ReplicatedWeights, Zero1


class Zero2(Zero1):
    """Zero1 whose ranks keep a shard of the gradients; `bucket_bytes` is the size of a bucket.

    After a backward pass the mean of a gradient is in the shards, on all ranks. `parameter.grad` is
    a `SpreadGradient` then, which only has a shape.
    """

    def __init__(self, *given: Any, bucket_bytes: int = 4_000_000, **settings: Any):
        super().__init__(*given, bucket_bytes=bucket_bytes, **settings)

    def make_gradients(self, weights: ReplicatedWeights) -> "ReduceFullBuckets":
        return ReduceFullBuckets(weights.units, weights.names)


class BackwardPhase(Enum):
    """State of a backward pass, which enters them in this order. Only its end leads back."""

    LOCAL = auto()  # none is under way, or only through forward passes in no_sync(): send nothing
    REDUCING = auto()  # it has reached one outside: each bucket is reduced when it is complete
    DEFERRED = auto()  # the same, but one more gradient can come: all buckets wait for the end


class ReduceFullBuckets(Gradients):
    """dW[N·s] of a bucket is reduced when it is complete, and all buckets before it are reduced.

    unreduced   whether gradients have come that no reduction has taken
    phase       of the backward pass
    missing     bucket → parameters whose gradients have not come in this pass
    to_reduce   buckets that are not reduced in this pass, in their order
    """

    def __init__(self, units: Sequence[FlatUnit], names: Mapping[nn.Parameter, str]):
        self.units, self.names = units, names
        self.unit_of = {p: unit for unit in units for p in unit.layout.parameters}
        self.reducer = GradientReducer(units, names, in_flight=2)
        self.unreduced = False
        self._clear()

    def _clear(self) -> None:
        """→ LOCAL: no backward pass is under way."""
        self.phase, self.task = BackwardPhase.LOCAL, -1
        self.missing = {unit: {*unit.layout.parameters} for unit in self.units}
        self.to_reduce = [*self.units]

    def _enter(self, phase: BackwardPhase) -> None:
        assert self.phase.value < phase.value, f"{self.phase} → {phase}"
        self.phase = phase

    def begin_pass(self, sync: bool = True, _: torch.Tensor | None = None) -> None:
        """Gradients: it reduces if one of its forward passes was to."""
        super().begin_pass()
        if self.phase is BackwardPhase.LOCAL and sync:  # how gradients came so far isn't noted
            self._enter(BackwardPhase.DEFERRED if self._any_came() else BackwardPhase.REDUCING)

    def _any_came(self) -> bool:
        """Whether a gradient has come in this pass: torch.autograd.grad gives parameters none."""
        return any(len(self.missing[unit]) < len(unit.layout.parameters) for unit in self.units)

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Gradients: start to reduce the buckets that are complete with this one."""
        if self.task == -1:  # before the gradient of any output
            self.begin_pass(self.sync and self.was_synced)
        unit = self.unit_of[parameter]
        if unit not in self.to_reduce:
            raise RuntimeError(
                f"{self.names[parameter]} got one more gradient after it was reduced: checkpoint "
                "with use_reentrant=False"
            )
        self.missing[unit].discard(parameter)
        self.unreduced = True
        # A reentrant checkpoint is a pass within the pass, and more gradients can follow.
        is_nested = torch._C._current_graph_task_id() != self.task
        if is_nested and self.phase is BackwardPhase.REDUCING:
            self._enter(BackwardPhase.DEFERRED)
        while self.phase is BackwardPhase.REDUCING and self.to_reduce:
            if self.missing[self.to_reduce[0]]:
                break
            self.reducer.start(self.to_reduce.pop(0))

    def end_pass(self) -> None:
        """Gradients: reduce all other buckets. A missing gradient is zero."""
        if self.phase is not BackwardPhase.LOCAL and self._any_came():
            self._reduce_rest()
        self._clear()

    def _reduce_rest(self) -> None:
        while self.to_reduce:
            self.reducer.start(self.to_reduce.pop(0))
        self.reducer.wait()
        self.unreduced = False

    def reduce(self) -> None:
        """Gradients: reduce what passes in no_sync() have left."""
        self.reducer.check_unchanged()
        if self.unreduced:
            self._reduce_rest()
            self._clear()

    def reset(self) -> None:
        """Gradients: drop them. If a pass raised, ranks may have sent more or less: send all."""
        if self.phase in (BackwardPhase.REDUCING, BackwardPhase.DEFERRED):
            self._reduce_rest()
        self.reducer.is_spread.clear()
        self.unreduced = False
        self._clear()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return self.reducer.tensors()
