"""Gradients are reduced in buckets, while the backward pass still computes the next ones.

    dW[N·s]{partial over ranks}, a unit → reduce_scatter(avg) → dW[s], the rest is freed

All ranks reduce units in one order, whatever order gradients come in. When a unit's turn has come
is a `Policy`: ZeRO-2 and ZeRO-3 have another one each.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed.zero.flat_unit import FlatUnit

REPLACED = (
    "{name}.grad was replaced or removed after it was reduced: its mean is in the shards, so use "
    "the optimizer's clip_grad_norm_ and zero_grad"
)
SPREAD = (
    "this gradient is spread over the ranks, and no rank has it whole: use the optimizer's "
    "clip_grad_norm_, which returns the norm, or its full_gradients()"
)
DESCRIPTIONS = ("__get__", "size", "dim", "numel", "untyped_storage")  # they need no values


class Policy(Protocol):
    """When a unit may be reduced. It must be the same on every rank, whatever their graphs are."""

    def check(self, unit: FlatUnit, parameter: nn.Parameter) -> None:
        """Raise RuntimeError if this gradient should not be ready now."""

    def pre_backward(self) -> None:
        """A backward pass has begun."""

    def may_reduce(self, unit: FlatUnit) -> bool:
        """Whether a unit's turn has come; its gradients may not all be ready yet."""

    def post_backward(self) -> None:
        """The backward pass has ended, and what is left is reduced next."""

    def reset(self) -> None:
        """No backward pass is under way."""


class SpreadGradient(torch.Tensor):
    """`parameter.grad` of ZeRO-2 and 3 once it is reduced: it has a shape, and no values."""

    @classmethod
    def of(cls, parameter: nn.Parameter, dtype: torch.dtype) -> "SpreadGradient":
        """In the shape of a parameter, but one element in memory, which is NaN."""
        nothing = torch.full((), torch.nan, dtype=dtype, device=parameter.device)
        return nothing.expand(parameter.shape).as_subclass(cls)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") not in DESCRIPTIONS:
            raise RuntimeError(SPREAD)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return 0  # the shards have the values, and their optimizer counts them

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"SpreadGradient(shape={list(self.shape)}, dtype={self.dtype})"


class Reduction(NamedTuple):
    """A unit's gradients on their way: `handle` waits for dW[s], which stands in `memory`."""

    unit: FlatUnit
    memory: torch.Tensor
    handle: Any


class ReduceInBackward:
    """Copies gradients into buckets, reduces those beside the backward pass, adds up dW[s].

    Units are reduced in their own order, the same on every rank, whatever order gradients come in.
    At most `in_flight` buckets are under way: one can be filled while another is reduced.
    """

    def __init__(
        self,
        units: Sequence[FlatUnit],
        policy: Policy,
        names: Mapping[nn.Parameter, str],
        in_flight: int = 2,
    ):
        self.names = names
        self.units = [unit for unit in units if unit.layout.trainable]
        self.unit_of = {p: unit for unit in self.units for p in unit.layout.parameters}
        self.policy, self.in_flight = policy, in_flight
        self.sync = True  # False within no_sync()
        self.spare: list[torch.Tensor] = []  # buckets' memory, where the group wants it kept
        self.spread = {p: SpreadGradient.of(p, self._dtype(p)) for p in self.unit_of}
        self.is_spread: set[nn.Parameter] = set()  # those of which `grad` is in the shards
        for parameter in self.unit_of:
            parameter.register_hook(partial(self._pre_accumulate, parameter))
        self._reset()

    def _dtype(self, parameter: nn.Parameter) -> torch.dtype:
        return self.unit_of[parameter].layout.reduce_dtype

    def _pre_accumulate(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Called by autograd with one more gradient: it is not to be added to the last one."""
        if parameter in self.is_spread:
            self._check_is_spread(parameter)
            self.is_spread.remove(parameter)
            parameter.grad = None

    def _check_is_spread(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not self.spread[parameter]:
            raise RuntimeError(REPLACED.format(name=self.names[parameter]))

    def _reset(self) -> None:
        """Be ready for the next backward pass."""
        self.missing = {unit: {*unit.layout.parameters} for unit in self.units}  # not ready yet
        self.to_reduce = [*self.units]  # in this order; the others are reduced, or under way
        self.under_way: list[Reduction] = []
        self.in_backward = False
        self.policy.reset()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here add up whole gradients on this rank, and reduce nothing."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Start to reduce every unit that is complete now, and whose turn has come."""
        unit = self.unit_of[parameter]
        self.policy.check(unit, parameter)
        if not self.sync:
            return
        if unit not in self.to_reduce:
            raise RuntimeError(
                f"{self.names[parameter]} got one more gradient after it was reduced: checkpoint "
                "with use_reentrant=False"
            )
        self.pre_backward()
        self.missing[unit].discard(parameter)
        self.reduce_in_order(only_complete=True)

    def expect(self, unit: FlatUnit) -> None:
        """Each of a unit's gradients is to come, be it once more: a checkpoint's come apart."""
        self.missing[unit] = {*unit.layout.parameters}

    def post_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The backward pass begins at the outputs, outside of all reentrant checkpoints."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._output_reached)

    def _output_reached(self, _: torch.Tensor) -> None:
        if self.sync and not self.in_backward:
            self.in_backward = True
            self.policy.pre_backward()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_if_begun)

    def _end_if_begun(self) -> None:
        """End the pass, unless it was torch.autograd.grad, which gives parameters nothing."""
        sizes = {unit: len(unit.layout.parameters) for unit in self.units}
        if any(len(missing) < sizes[unit] for unit, missing in self.missing.items()):
            self.post_backward()
        else:
            self._reset()

    def pre_backward(self) -> None:
        """The backward pass is here: autograd shall call `post_backward` at its end."""
        if not self.in_backward:
            self.in_backward = True
            self.policy.pre_backward()
            torch.autograd.Variable._execution_engine.queue_callback(self.post_backward)

    def post_backward(self) -> None:
        """Autograd's work is done: so are all gradients, on this rank."""
        self.policy.post_backward()
        if self.sync:
            self._finish()
        else:
            self._reset()

    def reduce_in_order(self, only_complete: bool) -> None:
        """Start to reduce units whose turn has come, up to the first that is not complete, or all.

        A gradient that is missing on this rank counts as zero.
        """
        while self.to_reduce:
            unit = self.to_reduce[0]
            if only_complete and self.missing[unit]:
                break
            if not self.policy.may_reduce(unit):
                break
            self._start_reduce(self.to_reduce.pop(0))

    @torch.no_grad()
    def _start_reduce(self, unit: FlatUnit) -> None:
        """Copy a unit's gradients into a bucket, free them, and start to average."""
        if len(self.under_way) == self.in_flight:
            self._wait_for_oldest()
        memory = self._find_memory(unit)
        own = {p: p.grad for p in unit.layout.parameters if p not in self.is_spread}
        flat = unit.layout.write(own, memory[: unit.layout.size])
        for parameter in unit.layout.parameters:
            parameter.grad = self.spread[parameter]
        self.is_spread.update(unit.layout.parameters)
        self.under_way.append(Reduction(unit, memory, unit.reduce_scatter(flat, async_op=True)))

    def _find_memory(self, unit: FlatUnit) -> torch.Tensor:
        """Memory for dW[N·s] of a unit, new or used before."""
        if not unit.group.costly_buffers:
            return unit.new_gradients()
        dtype = unit.layout.reduce_dtype
        for index, memory in enumerate(self.spare):
            if memory.dtype == dtype:
                return self.spare.pop(index)
        sizes = [one.layout.size for one in self.units if one.layout.reduce_dtype == dtype]
        return unit.group.empty(max(sizes), dtype)

    @torch.no_grad()
    def _wait_for_oldest(self) -> None:
        """Wait for the oldest bucket under way, and add its dW[s] to what is here."""
        unit, memory, handle = self.under_way.pop(0)
        unit.add_gradient(handle.wait())
        if unit.group.costly_buffers:
            self.spare.append(memory)

    def _finish(self) -> None:
        """Reduce all other units, and wait for them; a missing gradient is zero."""
        while self.to_reduce:
            self._start_reduce(self.to_reduce.pop(0))
        while self.under_way:
            self._wait_for_oldest()
        self._reset()

    def reduce(self) -> None:
        """Nothing is left to do, unless the last backward pass was in no_sync()."""
        for parameter in self.is_spread:
            self._check_is_spread(parameter)
        if any(p.grad is not None for p in self.unit_of if p not in self.is_spread):
            self._finish()

    def forget(self) -> None:
        if self.in_backward:  # it raised; other ranks may have sent more or less: now all send all
            self.post_backward()
        self.is_spread.clear()
        self._reset()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"buckets": [*self.spare, *(each.memory for each in self.under_way)]}
