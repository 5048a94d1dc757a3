"""ZeRO-1: the lesson `zero1.py` for any module: whole parameters, and sharded optimizer states."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.runtime.hooks import parts_of
from distributed.zero.flat_unit import MOVED, FlatUnit
from distributed.zero.guards import Hook
from distributed.zero.sharded import Gradients, ShardedOptimizer, Weights, layouts
from distributed.zero.sharding_plan import Precision, ShardingPlan


class Zero1(ShardedOptimizer):
    """Train `module` on all ranks of `group`, each with a shard of the optimizer's states.

    `optimizer_class` and `settings` are those of `torch.optim`, `param_groups` a list of dicts as
    torch takes it, `group` by default the process group of `init_process_group`. After
    `backward()`, `step()` averages gradients over the ranks, updates, and drops them; on a rank
    that has any, a missing one counts as zero. Raises what `ShardingPlan` raises, before anything
    is written.

    `param_dtype` and `reduce_dtype` are FSDP2's: see `Precision`. Inputs need `param_dtype`, too.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group | None = None,
        *,
        param_groups: Sequence[dict[str, Any]] | None = None,
        partition: str = "flat",
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        bucket_bytes: int = 25_000_000,
        **settings: Any,
    ):
        precision = Precision(param_dtype, reduce_dtype)
        plan = ShardingPlan(module, optimizer_class, group, param_groups, partition, precision)
        plan.check_settings(settings)
        weights = ReplicatedWeights(plan, bucket_bytes)
        super().__init__(plan, weights, self.make_gradients(weights), settings)
        module.register_forward_hook(Hook(self.post_forward))

    def make_gradients(self, weights: "ReplicatedWeights") -> Gradients:
        """The part that reduces gradients, which stage 2 replaces."""
        return ReduceInStep(weights.units)

    def post_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The module has computed: listen for the gradients of what it returns."""
        if torch.is_grad_enabled():
            self.gradients.was_synced = self.gradients.sync
            for tensor in parts_of(output):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(partial(self.gradients.begin_pass, self.gradients.sync))


class ReplicatedWeights(Weights):
    """W[N·s] of each unit is whole on every rank, and the parameters are views of it."""

    def __init__(self, plan: ShardingPlan, bucket_bytes: float):
        self.names = plan.names
        self.full: dict[FlatUnit, torch.Tensor] = {}
        self.views: dict[nn.Parameter, torch.Tensor] = {}  # of `full`
        # From the last parameter: its gradient is ready first.
        trained = [p for p in reversed(plan.names) if p.requires_grad]
        for layout in layouts(plan, trained, bucket_bytes):
            full = layout.broadcast(plan.group.empty(layout.size, layout.dtype), plan.group)
            shard = layout.shard(full, plan.group.rank)
            if layout.param_dtype != layout.dtype:
                shard = shard.clone()  # all other digits can go
                full = plan.group.empty(layout.size, layout.param_dtype).copy_(full)
            for parameter, view in layout.views(full).items():
                parameter.data = self.views[parameter] = view
            self.full[FlatUnit(layout, plan.group, shard)] = full
        self.units = [*self.full]
        narrow = plan.precision.param_dtype
        for parameter in plan.names:
            if narrow and not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(narrow)  # it is computed with, and never updated

    def check_or_read_params(self) -> None:
        """W[N·s] → W[s], where they are not on the same memory: what was written since.

        Raises RuntimeError for a parameter that is not a view of W[N·s] any more.
        """
        for parameter, view in self.views.items():
            alike = parameter.dtype == view.dtype and parameter.stride() == view.stride()
            if not alike or parameter.data_ptr() != view.data_ptr():
                raise RuntimeError(MOVED.format(name=self.names[parameter]))
        for unit, full in self.full.items():
            if unit.is_cast:
                unit.read_back(full)

    def shards_changed(self) -> None:
        """W[s] → W[N·s]: the parameters that the others updated."""
        for unit, full in self.full.items():
            unit.all_gather(full)

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"parameters": [*self.full.values()]}


class ReduceInStep(Gradients):
    """dW[N·s] of each unit grows in a buffer, over one backward pass or several, until the step."""

    def __init__(self, units: Sequence[FlatUnit]):
        self.buffers = {unit: unit.new_gradients().zero_() for unit in units}
        self.unit_of = {p: unit for unit in units for p in unit.layout.parameters}

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """The first gradient is copied into the buffer. Autograd adds later ones to it there."""
        self.begin_pass()
        unit, grad = self.unit_of[parameter], parameter.grad
        if grad is None:
            return  # a function of autograd gave none: it counts as zero
        view = unit.layout.view(self.buffers[unit], parameter)
        if grad.data_ptr() != view.data_ptr():
            view.copy_(grad.detach())  # a pass with create_graph=True would record the copy
            parameter.grad = view

    @torch.no_grad()
    def reduce(self) -> None:
        """dW[N·s]{partial over ranks} → dW[s], for every unit."""
        for unit, buffer in self.buffers.items():
            for parameter, view in unit.layout.views(buffer).items():
                grad = parameter.grad
                if grad is None:
                    view.zero_()
                elif grad.data_ptr() != view.data_ptr():
                    view.copy_(grad)  # the user's own instead of autograd's
                parameter.grad = None
            unit.gradient = unit.reduce_scatter(buffer).to(unit.shard.dtype)

    def reset(self) -> None:
        """What no gradient is copied over becomes zero when it is reduced."""
        self.task = -1

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"gradients": [*self.buffers.values()]}
