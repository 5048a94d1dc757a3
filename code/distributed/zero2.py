"""ZeRO-2: each bucket of gradients is reduced during the backward pass, and only a shard is kept.

    dW[N·s]{partial over ranks} of one bucket → reduce_scatter(avg) → dW[s]; dW[N·s] is freed
    W[s], dW[s], optimizer states of size s → W[s] → all_gather → W[N·s]    in the step, as ZeRO-1

A rank updates only its shard of the parameters, so it needs only that shard of the mean gradient.
ZeRO-1 waits for the last gradient before it reduces all of them, and needs memory for all. Here a
bucket is reduced as soon as it and all buckets before it are complete. Each rank keeps 1/N of the
gradients, plus one bucket and its flat copy at a time. It sends what ZeRO-1 sends, but half of it
earlier (Rajbhandari et al. 2020, §5.2, §7.2.1).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script
from distributed.zero1 import flatten, flatten_parameters


class ShardedBucket:
    """Parameters of one dtype whose gradients travel together. This rank updates a shard of them.

    After `reduce`, `shard.grad` holds the shard's mean gradient, added to earlier ones, and the
    parameters have no gradients. `when_full` is called when no gradient is missing.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: Group, when_full: Callable[[], None]
    ):
        self.parameters, self.group, self.when_full = parameters, group, when_full
        self.flat, self.shard = flatten_parameters(parameters, group)  # W[N·s] and W[s]
        self.missing = {*parameters}  # parameters whose gradients aren't complete yet
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.mark_ready)

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Hook, called by autograd when this parameter's gradient is complete."""
        self.missing.discard(parameter)
        if not self.missing:
            self.when_full()

    def reduce(self) -> None:
        """dW[N·s]{partial over ranks} → dW[s] in the gradients' dtype, added to `shard.grad`.

        The rest is freed. A missing gradient counts as zero.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat, _ = flatten(gradients, self.group.size)
        mean = torch.empty_like(self.shard)
        self.group.reduce_scatter(flat, mean, "avg")
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
        for parameter in self.parameters:
            parameter.grad = None
        self.missing = {*self.parameters}


def shard_gradients(
    module: nn.Module,
    buckets: Sequence[Sequence[nn.Parameter]],
    group: Group,
    optimizer_class: type[torch.optim.Optimizer],
    **settings: Any,
) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """A step function to call after `backward()`, and the optimizer of this rank's shards.

    `buckets` are lists of parameters, the last layer's first; a parameter in no bucket isn't
    trained. Buckets are reduced in this order on every rank, because reductions are matched by the
    order in which they start. The step updates the parameters and clears the gradients. Ranks may
    leave out different parameters. Several backward passes may share a step, and each of them
    reduces; then all ranks leave out the same. Every rank gets rank 0's weights and buffers.
    The optimizer must update each element separately. ValueError for a bucket of several dtypes.
    """
    queue: list[ShardedBucket] = []  # the one that is to be reduced next comes first

    def reduce_next() -> None:
        queue[0].reduce()
        queue.append(queue.pop(0))

    def reduce_full_buckets() -> None:
        while not queue[0].missing:
            reduce_next()

    broadcast_module(module, group)
    sharded = [ShardedBucket(parameters, group, reduce_full_buckets) for parameters in buckets]
    queue += sharded
    optimizer = optimizer_class([bucket.shard for bucket in sharded], **settings)

    def step() -> None:
        # Every rank drains the queue, even if some gradients never arrived.
        is_through = queue[0] is sharded[0] and sharded[0].shard.grad is not None
        if not is_through or any(p.grad is not None for one in queue for p in one.parameters):
            reduce_next()
        while queue[0] is not sharded[0]:
            reduce_next()
        optimizer.step()
        optimizer.zero_grad()
        for bucket in sharded:
            group.all_gather(bucket.shard.data, bucket.flat)

    return step, optimizer


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """Train like one device, with 1/N of the gradients and the bytes of ZeRO-1."""
    from distributed.instruments.one_device import OneDevice
    from distributed.planner.traffic import elements_sent

    alone = OneDevice(batch, steps, depth=3)
    losses, weights, kept, sent, shards = launch(train_rank, batch, steps, ranks=ranks)[0]
    alone.check(losses, weights)
    alone.check_bytes(kept, ranks, stage=2, padding=len(shards) * (2 * 8 * ranks + 4))
    predicted = elements_sent(2, ranks, shards)
    for phase, elements in sent.items():
        print(f"{phase}: {elements:,} elements sent; the formula says {predicted[phase]:,}")
        assert elements == predicted[phase]


def train_rank(
    group: Group, batch: int, steps: int
) -> tuple[list[float], list[torch.Tensor], dict[str, int], dict[str, int], list[int]]:
    """One rank: losses, weights, bytes kept after backward, elements sent by phase, shards."""
    from distributed.instruments.one_device import bytes_kept
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network, train, train_together

    ring, model = RingGroup(group), make_network(seed=group.rank, depth=3)
    model.double().to(group.device)
    buckets = [[*layer.parameters()] for layer in reversed(model) if [*layer.parameters()]]
    step, optimizer = shard_gradients(model, buckets, ring, torch.optim.AdamW, lr=0.01)
    losses = train_together(group, model, step, batch, steps)
    weights = [p.detach().cpu().clone() for p in model.parameters()]

    ring.trace = trace = Trace(group.rank)
    train(model, lambda: None, batches(1797, batch, 1), batch)
    kept, backward = bytes_kept(model, optimizer), trace.sent // 8
    step()
    sent = {"backward": backward, "step": trace.sent // 8 - backward}
    return losses, weights, kept, sent, [len(p) for p in optimizer.param_groups[0]["params"]]


if __name__ == "__main__":
    run_script(main)
