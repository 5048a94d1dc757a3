"""ZeRO-1: an all-reduce with the optimizer in the middle.

    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s]    this rank's shard of the mean
    W[s], dW[s], optimizer states of size s → W[s]               an optimizer of torch.optim
    W[s] of each rank → all_gather → W[N·s]                      new parameters on every rank

An all-reduce is a reduce-scatter followed by an all-gather. DDP runs both on gradients, and then
every rank computes the same update of all Ψ parameters. Here each rank updates only its shard, so
it keeps 1/N of the optimizer's states. The second half of the all-reduce carries new parameters
instead of gradients, and the number of bytes stays the same (Rajbhandari et al. 2020, §5.1, §7.2.1;
Xu et al. 2020).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script


@torch.no_grad()
def flatten(tensors: Sequence[torch.Tensor], ranks: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Flat copy x[N·s] of all tensors, end to end, and a view of it for each of them.

    Its length is rounded up to a multiple of the N ranks; the padding is zero. Raises ValueError
    if the tensors don't have one dtype.
    """
    if len(dtypes := {t.dtype for t in tensors}) != 1:
        raise ValueError(f"a flat buffer has one dtype, not {dtypes}: convert the parameters first")
    sizes = [t.numel() for t in tensors]
    flat = tensors[0].new_zeros(-(-sum(sizes) // ranks) * ranks)
    parts = flat[: sum(sizes)].split(sizes)
    views = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor)
    return flat, views


def flatten_parameters(
    parameters: Sequence[nn.Parameter], group: Group
) -> tuple[torch.Tensor, nn.Parameter]:
    """Move parameters into one flat buffer: all of it, W[N·s], and this rank's shard, W[s].

    The parameters and the shard become views of the buffer, so an update of the shard changes the
    parameters, and an all-gather into the buffer changes all of them.
    """
    flat, views = flatten(parameters, group.size)
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view
    return flat, nn.Parameter(flat.chunk(group.size)[group.rank])


def shard_optimizer(
    module: nn.Module,
    group: Group,
    optimizer_class: type[torch.optim.Optimizer],
    **settings: Any,
) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """A step function to call after `backward()`, and the optimizer of this rank's shard.

    Every rank gets rank 0's weights and buffers. Several backward passes may share a step, and
    a missing gradient counts as zero. Means are computed in the gradients' dtype. The optimizer
    must update each element separately, as SGD and Adam do. Raises ValueError for parameters of
    several dtypes, and RuntimeError in a step for gradients that are no longer in the buffer.
    """
    broadcast_module(module, group)
    parameters = [p for p in module.parameters() if p.requires_grad]
    flat, shard = flatten_parameters(parameters, group)
    gradient, views = flatten([torch.zeros_like(p) for p in parameters], group.size)
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view  # backward() adds to it in place
    mean = gradient.chunk(group.size)[group.rank]  # dW[s], where the reduce-scatter writes it
    optimizer = optimizer_class([shard], **settings)

    def step() -> None:
        if any(p.grad is not view for p, view in zip(parameters, views, strict=True)):
            raise RuntimeError("zero_grad() took gradients out of the buffer: step() clears them")
        group.reduce_scatter(gradient, mean, "avg")
        shard.grad = mean
        optimizer.step()  # of 1/N of the parameters
        group.all_gather(shard.data, flat)
        gradient.zero_()

    return step, optimizer


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """Train like one device, with 1/N of the optimizer's states and the bytes of DDP."""
    from distributed.instruments.one_device import OneDevice
    from distributed.planner.traffic import elements_sent

    alone = OneDevice(batch, steps)
    losses, weights, kept, sent = launch(train_rank, batch, steps, ranks=ranks)[0]
    alone.check(losses, weights)
    alone.check_bytes(kept, ranks, stage=1, padding=2 * 8 * ranks + 4)  # 4: Adam's count of steps
    predicted = sum(elements_sent(1, ranks, [-(-alone.psi // ranks)]).values())
    print(f"a rank sends {sent:,} elements per step; the formula says {predicted:,}")
    assert sent == predicted


def train_rank(
    group: Group, batch: int, steps: int
) -> tuple[list[float], list[torch.Tensor], dict[str, int], int]:
    """One rank: losses of whole batches, final weights, bytes it keeps, elements sent per step."""
    from distributed.instruments.one_device import bytes_kept
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.training import make_network, train_together

    ring, model = RingGroup(group), make_network(seed=group.rank).double().to(group.device)
    step, optimizer = shard_optimizer(model, ring, torch.optim.AdamW, lr=0.01)
    ring.trace = trace = Trace(group.rank)
    losses = train_together(group, model, step, batch, steps)
    weights = [p.detach().cpu() for p in model.parameters()]
    return losses, weights, bytes_kept(model, optimizer), trace.sent // (8 * steps)


if __name__ == "__main__":
    run_script(main)
