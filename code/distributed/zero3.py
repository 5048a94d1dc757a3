"""ZeRO-3: the transpose of an all-gather is a reduce-scatter.

    W[s] of each rank → all_gather → W[N·s]                       before a block computes
    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s]     when its gradient is complete

Each rank keeps a shard of a block's parameters and gathers the rest just before the block computes.
If that all-gather is part of the autograd graph, then the backward pass applies its transpose: it
sums the gradients over the ranks, and sends each part to the rank that owns the shard. We only
divide by N, because the loss is a mean over ranks. Activation checkpointing frees the gathered
parameters after the forward pass, and gathers them again in the backward pass.

Each rank keeps 1/N of the parameters, gradients and optimizer states. One block at a time is whole,
and so is its gradient. A rank sends 3Ψ(N − 1)/N elements per step, 1.5 times what DDP sends. See
Rajbhandari et al. 2020, §5.3 and §7.2.2, and Zhao et al. 2023, §3. SimpleFSDP (arXiv 2411.00284)
also makes the gather a part of the graph, so that a compiler can move it.
"""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script
from distributed.zero1 import flatten


class AllGather(torch.autograd.Function):
    """W[s] of each rank → W[N·s]; backward, dW[N·s]{partial over ranks} → dW[s], the mean."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return group.all_gather(shard, shard.new_empty(group.size * len(shard)))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        shard = gradient.new_empty(len(gradient) // ctx.group.size)
        spent = gradient.clone()  # a reduce-scatter overwrites its input, which is autograd's
        return ctx.group.reduce_scatter(spent, shard, "avg"), None


class Sharded(nn.Module):
    """A block that keeps only a shard of its parameters, and gathers the rest while it computes.

    Its one trained parameter is `shard`, W[s]; element-wise optimizers (SGD, Adam) can update it.
    Collectives use its dtype. Frozen parameters and buffers stay whole. Every rank gets rank 0's
    values at the start. All ranks must call the same blocks in the same order. Raises ValueError
    for parameters of several dtypes, tied weights, and nested blocks.
    """

    def __init__(self, module: nn.Module, group: Group):
        super().__init__()
        check_can_be_sharded(module)
        broadcast_module(module, group)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        flat, _ = flatten([*trained.values()], group.size)
        self.shard = nn.Parameter(flat.chunk(group.size)[group.rank].clone())
        self.shapes = {name: p.shape for name, p in trained.items()}
        for name in trained:  # the module loses them, and borrows them when it computes
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, None)
        self.module, self.group = module, group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # Frees W[N·s] after the forward pass, and computes it again in the backward pass.
        return checkpoint(self._compute, *args, use_reentrant=False, **kwargs)

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.module, self.unshard(), args, kwargs)

    def unshard(self) -> dict[str, torch.Tensor]:
        """Name → value of each parameter, on the memory of W[N·s]."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = self.gather()[: sum(sizes)].split(sizes)
        shapes = self.shapes.items()
        return {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}

    def gather(self) -> torch.Tensor:
        """W[s] of each rank → W[N·s]."""
        return AllGather.apply(self.shard, self.group)


def check_can_be_sharded(module: nn.Module) -> None:
    """Raise ValueError for a weight with two names, and for a block inside a block."""
    names = {name for name, _ in module.named_parameters()}
    for name, _ in module.named_parameters(remove_duplicate=False):
        if name not in names:
            raise ValueError(f"module: {name} is tied to another weight; give it its own values")
    if any(isinstance(part, Sharded) for part in module.modules()):
        raise ValueError("module: has a block that is sharded already; shard the other parts only")


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """Train like one device, with 1/N of everything, and send 1.5 times the bytes of DDP."""
    from distributed.instruments.one_device import OneDevice
    from distributed.planner.traffic import elements_sent

    alone = OneDevice(batch, steps, depth=3)
    losses, weights, kept, sent, shards = launch(train_rank, batch, steps, ranks=ranks)[0]
    alone.check(losses, weights)
    alone.check_bytes(kept, ranks, stage=3, padding=len(shards) * (2 * 8 + 4))  # 4: Adam's count
    predicted = sum(elements_sent(3, ranks, shards, resident_blocks=0).values())
    ddp = sum(elements_sent(0, ranks, shards).values())
    print(f"a rank sends {sent:,} elements per step; the formula says {predicted:,}, DDP's {ddp:,}")
    assert sent == predicted == 1.5 * ddp


def train_rank(
    group: Group, batch: int, steps: int
) -> tuple[list[float], list[torch.Tensor], dict[str, int], int, list[int]]:
    """One rank: losses of whole batches, final weights; bytes it keeps after a backward pass,
    elements sent per step, lengths of its shards.
    """
    from distributed.instruments.one_device import bytes_kept
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches
    from distributed.workbench.training import Alone, make_network, train, train_together

    ring, model = RingGroup(group), make_network(seed=group.rank, depth=3)
    model.double().to(group.device)
    for i, layer in enumerate(model):
        if [*layer.parameters()]:
            model[i] = Sharded(layer, ring)
    trained = Alone(model, torch.optim.AdamW, lr=0.01)
    losses = train_together(group, model, trained.step, batch, steps)
    blocks = [block for block in model if isinstance(block, Sharded)]
    weights = [weight.detach().cpu() for block in blocks for weight in block.unshard().values()]
    ring.trace = trace = Trace(group.rank)
    train(model, lambda: None, batches(1797, batch, 1), batch)
    kept = bytes_kept(model, trained.optimizer)
    trained.step()
    return losses, weights, kept, trace.sent // 8, [len(shard) for shard in model.parameters()]


if __name__ == "__main__":
    run_script(main)
