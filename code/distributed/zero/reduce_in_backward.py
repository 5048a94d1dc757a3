"""Gradients that are reduced beside the backward pass, a unit at a time, in ZeRO-2 and ZeRO-3.

    dW[N·s]{partial over ranks}, a unit → reduce_scatter(avg) → dW[s]; the whole one is freed

When a unit's gradients are complete is for its stage to say: it must be the same on every rank.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.zero.flat_unit import FlatUnit
from distributed.zero.guards import SpreadGradient

REPLACED = (
    "{name}.grad was replaced or removed after it was reduced: its mean is in the shards, so use "
    "the optimizer's clip_grad_norm_ and zero_grad"
)


class Reduction(NamedTuple):
    """A unit's gradients on their way: `handle` waits for dW[s], which is a part of `memory`."""

    unit: FlatUnit
    memory: torch.Tensor
    handle: Any


class GradientReducer:
    """Copies a unit's gradients into a bucket, reduces it beside the backward pass, adds up dW[s].

    spread     each trained parameter's SpreadGradient
    is_spread  parameters whose `grad` it is: their gradient is in the shards, or on its way there
    under_way  reductions that were started and not waited for, the oldest first: up to `in_flight`
    spare      memory of buckets to use again, if the group's memory is costly
    """

    def __init__(
        self, units: Sequence[FlatUnit], names: Mapping[nn.Parameter, str], in_flight: int
    ):
        self.units, self.names, self.in_flight = units, names, in_flight
        self.spread = {
            parameter: SpreadGradient.of(parameter, unit.layout.reduce_dtype)
            for unit in units
            for parameter in unit.layout.parameters
        }
        self.is_spread: set[nn.Parameter] = set()
        self.under_way: list[Reduction] = []
        self.spare: list[torch.Tensor] = []
        for parameter in self.spread:
            parameter.register_hook(partial(self._pre_accumulate, parameter))

    def _pre_accumulate(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Called by autograd with one more gradient: it must not be added to the last one."""
        if parameter in self.is_spread:
            self._check_is_spread(parameter)
            self.is_spread.remove(parameter)
            parameter.grad = None

    def _check_is_spread(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not self.spread[parameter]:
            raise RuntimeError(REPLACED.format(name=self.names[parameter]))

    @torch.no_grad()
    def start(self, unit: FlatUnit) -> None:
        """Copy a unit's gradients into a bucket, free them, and start to average.

        A gradient that this rank doesn't have counts as zero.
        """
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
        """Wait for the oldest bucket under way, and add its dW[s] to what earlier passes left."""
        unit, memory, handle = self.under_way.pop(0)
        unit.add_gradient(handle.wait())
        if unit.group.costly_buffers:
            self.spare.append(memory)

    def wait(self) -> None:
        """Wait for every reduction under way."""
        while self.under_way:
            self._wait_for_oldest()

    def check_unchanged(self) -> None:
        """Raise RuntimeError if a gradient was replaced after it was reduced."""
        for parameter in self.is_spread:
            self._check_is_spread(parameter)

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"buckets": [*self.spare, *(each.memory for each in self.under_way)]}
