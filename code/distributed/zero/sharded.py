"""Sharded optimizer: torch's optimizer interface over shards, the same for all stages of ZeRO.

    dW[s] on each rank → optimizer → W[s], with states of size s

Each stage has two parts: how gradients become dW[s] (`Gradients`), and how updated shards
become parameters again (`Weights`).
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from distributed import Group
from distributed.bucketed_ddp import fill_buckets
from distributed.runtime.hooks import call_last
from distributed.zero.flat_unit import FlatUnit, Layout, Piece
from distributed.zero.guards import REFUSED, Hook, OwnGradient, check_unchanged
from distributed.zero.sharding_plan import Precision, ShardingPlan


class Weights(Protocol):
    """The parameters, as a stage holds them."""

    units: list[FlatUnit]

    def check_or_read_params(self) -> None:
        """Take into W[s] what was written into the parameters, or raise RuntimeError if it was."""

    def shards_changed(self) -> None:
        """W[s] has changed on every rank: no rank may compute with the old W[N·s] after this."""

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Tensors that this rank holds beside its shards, by purpose."""


class Gradients(ABC):
    """The gradients: how a stage makes each unit's dW[s].

    A forward pass while `sync` is False is such that its backward pass sends nothing.
    """

    sync: bool = True
    was_synced: bool = True  # in the last forward pass that a backward pass can follow
    task: int = -1  # autograd's number of the backward pass under way; `reset` ends one that raised

    def begin_pass(self, sync: bool = True, _: torch.Tensor | None = None) -> None:
        """A backward pass is here. `sync` is what it was in one of its forward passes."""
        if self.task == -1:
            self.task = torch._C._current_graph_task_id()
            torch.autograd.Variable._execution_engine.queue_callback(self.end_pass)

    def end_pass(self) -> None:
        """Called by autograd when the pass has come to its end."""
        self.task = -1

    def check_not_failed(self) -> None:
        """RuntimeError outside of a backward pass, if the last one didn't come to its end."""
        if self.task != -1 and torch._C._current_graph_task_id() == -1:
            raise RuntimeError(REFUSED["failed"])

    @abstractmethod
    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Autograd has finished this parameter's gradient, on this rank."""

    @abstractmethod
    def reduce(self) -> None:
        """Give every unit its `gradient`, unless the backward pass has; a missing one is zero."""

    @abstractmethod
    def reset(self) -> None:
        """Before the next step's first backward pass, or after one that raised."""

    @abstractmethod
    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Tensors that this rank holds beside each unit's `gradient`, by purpose."""


class GradientPhase(Enum):
    """State of the gradients, from one step to the next."""

    EMPTY = auto()  # there is none: a step would have nothing to do
    PARTIAL = auto()  # there are some; they can still grow
    REDUCED = auto()  # each unit's `gradient` is the mean, maybe clipped: only a step may follow


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer of torch whose parameters, gradients and states are this rank's shards.

    A user's loop and torch's schedulers work unchanged. Every rank has all `param_groups`; their
    parameters are this rank's shards W[s], and `.grad` is dW[s] while `step()` runs. `state_dict()`
    is this rank's, and `checkpoint.save` writes all ranks'. `step()` drops the gradients, so
    `zero_grad()` is needed only after a backward pass that failed.
    """

    def __init__(self, plan: ShardingPlan, weights: Weights, gradients: Gradients, settings: dict):
        trained = [unit for unit in weights.units if unit.layout.trainable]
        local = [mine for unit in trained for mine in local_parameters(unit, plan)]
        # Also a group without parameters on this rank: a schedule counts on finding all of them.
        groups = [{**group, "params": []} for group in plan.param_groups]
        for mine in local:
            groups[mine.group]["params"].append(mine.parameter)
        super().__init__(groups, defaults={})
        # The optimizer that updates shards. It adds its own settings to the groups.
        self.optimizer = plan.optimizer_class(self.param_groups, **settings)
        self.defaults = self.optimizer.defaults
        self._share_groups_and_states()

        self.plan, self.weights, self.gradients = plan, weights, gradients
        self.module, self.group, self.names = plan.module, plan.group, plan.names
        self.units, self.trained, self.local = weights.units, trained, local
        self.unit_of = {p: unit for unit in self.units for p in unit.layout.parameters}
        self.frozen = {parameter for parameter in plan.names if not parameter.requires_grad}
        self.replicas: Group | None = None  # of HSDP: the ranks that hold these shards, too
        self.phase = GradientPhase.EMPTY
        for tensor in [*self.in_no_unit(), *self.module.buffers()]:
            if tensor.numel():
                self.group.broadcast(tensor.data)
        self.hooks = []
        for unit in trained:
            for parameter in unit.layout.parameters:
                parameter.grad_dtype = unit.layout.reduce_dtype  # autograd adds in it, too
                self.hooks.append(parameter.register_post_accumulate_grad_hook(self.mark_ready))
        self.module.register_forward_pre_hook(Hook(self.pre_forward))

    def _share_groups_and_states(self) -> None:
        """One list of groups and one dict of states for both: what a schedule sets here counts."""
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    def pre_forward(self, *_: Any) -> None:
        """The module is about to compute."""
        if any(unit.shard._version != unit.version for unit in self.units):
            raise RuntimeError(REFUSED["shards"])
        if torch.is_grad_enabled():
            self.gradients.check_not_failed()
        call_last(self.hooks)

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a parameter's gradient is complete. EMPTY, PARTIAL → PARTIAL."""
        if self.phase is GradientPhase.REDUCED:
            raise RuntimeError("gradients are averaged and clipped already: step() comes first")
        self.phase = GradientPhase.PARTIAL
        self.gradients.mark_ready(parameter)
        if type(parameter.grad) is torch.Tensor:  # and is neither on its way nor reduced
            parameter.grad = parameter.grad.as_subclass(OwnGradient)

    def reduce(self) -> None:
        """dW[N·s]{partial over ranks} → dW[s], their mean in the shards' dtype. → REDUCED.

        `step()` and `clip_grad_norm_()` do it; then each of `trained` has its `gradient`. Raises
        RuntimeError if there is no gradient.
        """
        if self.phase is GradientPhase.EMPTY:
            raise RuntimeError(REFUSED["no gradients"])
        if self.phase is GradientPhase.PARTIAL:
            self.gradients.check_not_failed()
            self.gradients.reduce()
            self.phase = GradientPhase.REDUCED

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradient so that its norm over all ranks is at most this; the norm before.

        Squares are added in float32, or in the widest dtype of the shards.
        """
        self.reduce()
        gradients = [unit.reduced() for unit in self.trained]
        squares = torch.zeros((), device=self.group.device)
        for gradient in gradients:
            wide = torch.promote_types(torch.float32, gradient.dtype)
            squares = squares + gradient.to(wide).square().sum()
        norm = self.group.all_reduce(squares).sqrt()
        for gradient in gradients:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Average the gradients, update this rank's shards, gather all ranks'. → EMPTY.

        `closure()`, if there is one, computes the loss and its gradients first; `step` returns it.
        """
        with torch.enable_grad():
            loss = closure() if closure else None
        with torch.no_grad():
            self.sync_shards_from_params()
            self.reduce()
            self._update()
            self.shards_changed()
        self.zero_grad()
        return loss

    def shards_changed(self) -> None:
        """All ranks call it after a write into shards. A write through `.data` needs it most."""
        self.weights.shards_changed()
        for unit in self.units:
            unit.version = unit.shard._version

    def sync_shards_from_params(self) -> None:
        """Take into the shards what was written into the module's parameters since the last step.

        Raises RuntimeError, with a line of `guards.REFUSED`, where it cannot be followed.
        """
        check_unchanged(self.module, self.names, self.frozen)
        self.weights.check_or_read_params()

    def _update(self) -> None:
        """dW[s], W[s], states[s] → W[s]: 1/N of the work on each rank."""
        for mine in self.local:
            mine.parameter.grad = mine.unit.reduced()[mine.shard_slice].view(mine.parameter.shape)
        self.optimizer.step()
        for mine in self.local:
            mine.parameter.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. A missing one counts as zero, so both settings do the same."""
        self.gradients.reset()
        for unit in self.trained:
            for parameter in unit.layout.parameters:
                parameter.grad = None
            unit.gradient = None
        self.phase = GradientPhase.EMPTY

    def register_step_post_hook(self, hook: Any) -> RemovableHandle:
        """The hook is called when shards are updated, before other ranks get what is in them."""
        return self.optimizer.register_step_post_hook(hook)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes in here are such that their backward passes add up, and send nothing."""
        before, self.gradients.sync = self.gradients.sync, False
        try:
            yield
        finally:
            self.gradients.sync = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only for torch's own constructor: the groups' parameters are shards that are cut once."""
        if hasattr(self, "plan"):
            raise RuntimeError("shards are cut already: give param_groups= when you make it")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"a {type(self).__name__} is one of several ranks', and cannot be copied or pickled: "
            "use checkpoint.save, or make another one for a copy of the module"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked for by `torch.amp.GradScaler.step`."""
        raise RuntimeError(REFUSED["GradScaler"])

    def state_dict(self) -> dict[str, Any]:
        """This rank's states and all groups' settings, and whose they are."""
        return super().state_dict() | {"rank": self.group.rank, "ranks": self.group.size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """This rank's states and all groups' settings, from its own `state_dict()`."""
        saved = state_dict.get("rank", self.group.rank), state_dict.get("ranks", self.group.size)
        if saved != (self.group.rank, self.group.size):
            raise ValueError(
                f"state_dict: its shards are of rank {saved[0]} of {saved[1]}, and this is rank "
                f"{self.group.rank} of {self.group.size}: let each rank save its own, or use "
                "checkpoint.save and checkpoint.load, which also change the number of ranks"
            )
        self.optimizer.load_state_dict(state_dict)
        self._share_groups_and_states()

    @torch.no_grad()
    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and value of each parameter, gathered a unit at a time; all ranks must ask.

        Values have the dtype of shards, also under a `param_dtype`. Frozen and empty ones can be in
        no unit, and come last. Copy what you keep: the next unit is gathered into the same buffer.
        """
        self.sync_shards_from_params()
        yield from self._all_gather({unit: unit.shard for unit in self.units})
        for parameter in self.in_no_unit():
            yield self.names[parameter], parameter.detach()

    @torch.no_grad()
    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and mean gradient of what is trained, as `full_parameters` yields values.

        It is what `step()` will apply: averaged, and clipped if it was. → REDUCED.
        """
        self.reduce()
        yield from self._all_gather({unit: unit.reduced() for unit in self.trained})

    def _all_gather(
        self, parts: dict[FlatUnit, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Part[s] of each unit → name and view of each of its parameters' elements."""
        sizes = [unit.layout.size * part.itemsize for unit, part in parts.items()]
        buffer = torch.empty(max(sizes, default=0), dtype=torch.uint8, device=self.group.device)
        for (unit, part), size in zip(parts.items(), sizes, strict=True):
            full = self.group.all_gather(part, buffer[:size].view(part.dtype))
            for parameter, view in unit.layout.views(full).items():
                yield self.names[parameter], view

    def in_no_unit(self) -> list[nn.Parameter]:
        """Parameters that are whole on every rank: frozen ones before ZeRO-3, and empty ones."""
        return [parameter for parameter in self.names if parameter not in self.unit_of]

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Tensors that this rank holds, by purpose."""
        states = [value for found in self.optimizer.state.values() for value in found.values()]
        found = {
            "parameters": [unit.shard for unit in self.units if not unit.is_cast],
            "master copy": [unit.shard for unit in self.units if unit.is_cast],
            "optimizer states": [value for value in states if isinstance(value, torch.Tensor)],
            "gradients": [u.gradient for u in self.trained if u.gradient is not None],
        }
        for name, tensors in [*self.weights.tensors().items(), *self.gradients.tensors().items()]:
            found.setdefault(name, []).extend(tensors)
        return found


def layouts(
    plan: ShardingPlan, parameters: Sequence[nn.Parameter], most: float = inf
) -> list[Layout]:
    """Layouts of up to `most` bytes: one dtype in each, trained or frozen, sorted by group.

    A parameter without elements is in none. Raises ValueError for `most` below 1.
    """
    if most < 1:
        raise ValueError(f"bucket_bytes={most}: a bucket holds 1 byte or more")
    found = []
    for trained in (True, False):
        alike = [p for p in parameters if p.numel() and p.requires_grad == trained]
        for bucket in fill_buckets(alike, most, most):
            precision = plan.precision if bucket[0].is_floating_point() else Precision()
            ordered = sorted(bucket, key=lambda p: plan.group_of.get(p, -1))  # -1: it is frozen
            found.append(Layout(ordered, plan.group.size, plan.partition, *precision))
    return found


class LocalParameter(NamedTuple):
    """A run of a unit's pieces in one parameter group, which the optimizer updates alike.

    `optimizer.state[parameter]` holds tensors of its shape, and scalars.
    """

    parameter: nn.Parameter  # a view of the unit's shard[s]
    unit: FlatUnit
    shard_slice: slice  # of the unit's shard
    pieces: list[Piece]  # of parameters in the module: where they are in `parameter`
    group: int  # index in the optimizer's param_groups


def local_parameters(unit: FlatUnit, plan: ShardingPlan) -> Iterator[LocalParameter]:
    """This rank's shard of a unit, as few tensors as its groups allow."""
    whole = plan.partition == "parameter"

    def updated_with(piece: Piece) -> int:
        return id(piece.parameter) if whole else plan.group_of[piece.parameter]

    for _, alike in groupby(unit.layout.pieces(plan.group.rank), updated_with):
        run = [*alike]
        first, start = run[0].parameter, run[0].local_slice.start
        shard_slice = slice(start, run[-1].local_slice.stop)
        values = unit.shard[shard_slice]
        local = nn.Parameter(values.view(first.shape) if whole else values)
        pieces = [Piece(p, of, slice(at.start - start, at.stop - start)) for p, of, at in run]
        yield LocalParameter(local, unit, shard_slice, pieces, plan.group_of[first])
