"""Faults that are planted to see what the fuzzer is worth: each is small, and most are silent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from distributed.bucketed_ddp import Bucket, State
from distributed.ddp import wrapper as ddp
from distributed.ddp.usage import Usage
from distributed.zero import HSDP, Zero3, checkpoint
from distributed.zero.blocks import Block, BlockwiseWeights
from distributed.zero.flat_unit import FlatUnit, Layout
from distributed.zero.reduce_in_backward import GradientReducer
from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.stage1 import ReduceInStep, ReplicatedWeights

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def fault(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    assert plant.__doc__
    FAULTS[plant.__doc__] = plant
    return plant


@fault
def first_weight(patch: pytest.MonkeyPatch) -> None:
    "DDP does not send the first weight"
    send = ddp.broadcast_module

    def broadcast_module(module: Any, group: Any) -> None:
        first = next(module.parameters())
        mine = first.detach().clone()
        send(module, group)
        first.data.copy_(mine)

    patch.setattr(ddp, "broadcast_module", broadcast_module)


@fault
def divisor(patch: pytest.MonkeyPatch) -> None:
    "DDP divides the last bucket by one rank too many"
    reduce = Bucket.reduce

    def too_small(self: Bucket, group: Any, hook: Any) -> None:
        if self.index == 0:
            self.buffer *= group.size / (group.size + 1)
        reduce(self, group, hook)

    patch.setattr(Bucket, "reduce", too_small)


@fault
def stale_buffer(patch: pytest.MonkeyPatch) -> None:
    "DDP sends buffers in its first pass only"
    share = ddp.DistributedDataParallel._share_buffers

    def once(self: Any) -> None:
        if not hasattr(self, "shared"):
            share(self)
        self.shared = True

    patch.setattr(ddp.DistributedDataParallel, "_share_buffers", once)


@fault
def no_wait(patch: pytest.MonkeyPatch) -> None:
    "DDP does not wait for its buckets"

    def wait(self: Bucket) -> None:
        self.state = State.IDLE

    patch.setattr(Bucket, "wait", wait)


@fault
def stale_gradient(patch: pytest.MonkeyPatch) -> None:
    "DDP leaves the last pass's gradient where a rank has none"
    store = Bucket.store

    def stale(self: Bucket, parameter: Any) -> None:
        if parameter.grad is not None:
            store(self, parameter)

    patch.setattr(Bucket, "store", stale)


@fault
def unused(patch: pytest.MonkeyPatch) -> None:
    "DDP's ranks do not compare what they used"

    def compare(self: Usage, group: Any) -> None:
        self.expected = self.expected or {p: self.counts.get(p, 0) for p in self.names}

    patch.setattr(Usage, "compare", compare)


@fault
def not_zeroed(patch: pytest.MonkeyPatch) -> None:
    "ZeRO-1 reduces the last step's gradient where a rank has none"

    def reduce(self: ReduceInStep) -> None:
        for unit, buffer in self.buffers.items():
            for parameter in unit.layout.parameters:
                parameter.grad = None
            unit.gradient = unit.reduce_scatter(buffer)

    patch.setattr(ReduceInStep, "reduce", torch.no_grad()(reduce))


@fault
def last_bucket_not_sent(patch: pytest.MonkeyPatch) -> None:
    "ZeRO-1 and ZeRO-2 do not send the last unit's new parameters"

    def shards_changed(self: ReplicatedWeights) -> None:
        for unit, full in [*self.full.items()][:-1] or self.full.items():
            unit.all_gather(full)

    patch.setattr(ReplicatedWeights, "shards_changed", shards_changed)


@fault
def reduced_twice(patch: pytest.MonkeyPatch) -> None:
    "ZeRO reduces the bucket with the first parameter twice"
    scatter = FlatUnit.reduce_scatter

    def twice(self: FlatUnit, flat: Any, async_op: bool = False) -> Any:
        if self.layout.trainable and self.layout.start.get(self.layout.parameters[0]) == 0:
            scatter(self, flat)
        return scatter(self, flat, async_op)

    patch.setattr(FlatUnit, "reduce_scatter", twice)


@fault
def last_pass_counts(patch: pytest.MonkeyPatch) -> None:
    "ZeRO-2 and ZeRO-3 keep the gradient of a step's last pass, not the sum"
    wait = GradientReducer._wait_for_oldest

    def forget(self: GradientReducer) -> None:
        self.under_way[0].unit.gradient = None
        wait(self)

    patch.setattr(GradientReducer, "_wait_for_oldest", forget)


@fault
def clip_factor(patch: pytest.MonkeyPatch) -> None:
    "ZeRO does not scale the last unit's gradient when it clips"
    clip = ShardedOptimizer.clip_grad_norm_

    def all_but_one(self: ShardedOptimizer, max_norm: float) -> torch.Tensor:
        self.reduce()
        kept = self.trained[-1].gradient.clone()
        norm = clip(self, max_norm)
        self.trained[-1].gradient.copy_(kept)
        return norm

    patch.setattr(ShardedOptimizer, "clip_grad_norm_", all_but_one)


@fault
def offset(patch: pytest.MonkeyPatch) -> None:
    "A unit's last parameter begins one element too early"
    view = Layout.view

    def early(self: Layout, flat: torch.Tensor, parameter: Any) -> torch.Tensor:
        start = self.start[parameter]
        if parameter is not self.parameters[-1] or not start:
            return view(self, flat, parameter)
        return flat[start - 1 : start - 1 + parameter.numel()].view(parameter.shape)

    patch.setattr(Layout, "view", early)


@fault
def old_weights(patch: pytest.MonkeyPatch) -> None:
    "ZeRO-3 keeps the root gathered after a step"

    def shards_changed(self: BlockwiseWeights) -> None:
        for block in self.blocks:
            block.reshard()

    patch.setattr(BlockwiseWeights, "shards_changed", shards_changed)


@fault
def no_wait_for_gather(patch: pytest.MonkeyPatch) -> None:
    "ZeRO-3 does not wait for what it gathers"

    def wait(self: Block) -> None:
        self.handles = []

    patch.setattr(Block, "_wait", wait)


@fault
def hosts_apart(patch: pytest.MonkeyPatch) -> None:
    "HSDP does not average between hosts"
    patch.setattr(HSDP, "reduce", Zero3.reduce)


@fault
def momentum_lost(patch: pytest.MonkeyPatch) -> None:
    "A checkpoint's momentum is not resharded"
    load = checkpoint.load

    def without_states(zero: ShardedOptimizer, *given: Any) -> Any:
        extra = load(zero, *given)
        for states in zero.optimizer.state.values():
            for value in states.values():
                if value.dim():
                    value.zero_()
        return extra

    patch.setattr(checkpoint, "load", without_states)
