"""Low-rank adaptation (LoRA): freeze a trained model, and train small adapters beside its layers.

    y[b, o] = x[b, d] W[o, d]ᵀ + α/r · x A[r, d]ᵀ B[o, r]ᵀ            W is frozen
    dA[r, d], dB[o, r]{partial over ranks} → all_reduce(avg) → dA, dB

The change of a weight is a product of two thin matrices, so a layer trains r(d + o) parameters
instead of d·o. Only these have gradients, optimizer states and messages. The frozen weights take
memory, but no more than that, and the backward pass still goes through them: dx = dy (W + α/r BA).
The activations stay, too, because dA needs x just as dW did. B begins at zero, so the first step
sees the model as it was. Afterward, α/r BA is added to W, and the model has its old form (Hu et al.
2021, §4.1).
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from distributed import Group, launch
from distributed.runtime.script import run_script


class LoRALinear(nn.Module):
    """x[..., d] → y[..., o]: a frozen linear layer, plus an adapter of rank r that is trained."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank={rank}: 1 or more rows of A, and columns of B")
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as nn.Linear begins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Two thin products. B A as one matrix [o, d] would cost what training W costs.
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


def add_adapters(module: nn.Module, rank: int, alpha: float) -> None:
    """Freeze all parameters, and give each linear layer an adapter.

    Ranks have to draw the same A, by the same seed or by a broadcast. Raises ValueError for a tied
    weight, because merging would change it for everything that uses it, and for a lone layer.
    """
    names: dict[torch.Tensor, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    for name, layer in layers:
        if not name:
            raise ValueError("module: is one linear layer; put it into an nn.Sequential")
        if len(same := names[layer.weight]) > 1:
            raise ValueError(f"module: {same[0]} and {same[1]} are one weight; adapt other parts")
    module.requires_grad_(False)
    for name, layer in layers:
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, LoRALinear(layer, rank, alpha))


@torch.no_grad()
def merge_adapters(module: nn.Module) -> None:
    """Replace each layer with an adapter by a plain one, W[o, d] + α/r BA, with the same outputs.

    The sum is rounded to W's dtype, so in bf16 a small change may be lost.
    """
    for parent in [*module.modules()]:
        for name, child in [*parent.named_children()]:
            if isinstance(child, LoRALinear):
                child.base.weight += child.scale * child.lora_b @ child.lora_a
                setattr(parent, name, child.base)


def adapter_parameters(module: nn.Module, rank: int) -> int:
    """Trained parameters of a module with adapters: rank · (d + o) per linear layer W[o, d]."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)


def main(ranks: int = 4, rank: int = 4, batch: int = 256, steps: int = 60) -> None:
    """Adapt a trained model to mirrored digits: like one device, with messages of adapters only."""
    from distributed.model_states import Recipe, per_rank

    alone, *_ = launch(train_rank, rank, batch, steps, ranks=1)[0]
    results = launch(train_rank, rank, batch, steps, ranks=ranks)
    losses, logits, kept, sent, frozen, trained = results[0]
    print(f"{frozen:,} frozen parameters, {trained:,} trained")
    print(f"loss on mirrored digits {losses[0]:.4f} → {losses[-1]:.4f}; one device {alone[-1]:.4f}")
    torch.testing.assert_close(losses, alone, rtol=1e-6, atol=0)
    assert losses[-1] < 0.3 * losses[0]
    assert all(torch.equal(other[1], logits) for other in results)

    formula = per_rank(trained, ranks, 0, Recipe(8, 8, 0, 2 * 8))  # float64 and Adam
    formula["parameters"] += 8 * frozen
    for what, size in kept.items():
        print(f"{what}: {size:,} bytes on a rank; the formula says {formula[what]:,.0f}")
        assert 0 <= size - formula[what] <= 8 * 4 * 2  # Adam's counter of each adapter's tensors
    predicted = 2 * trained * (ranks - 1) / ranks  # an all-reduce in a ring
    whole = 2 * frozen * (ranks - 1) / ranks
    print(f"a rank sends {sent:,} elements per step; the formula says {predicted:,.0f}")
    print(f"with gradients of all weights, it would send {whole:,.0f}")
    assert abs(sent - predicted) < 2 * 8  # a ring cuts each of 8 tensors into whole elements


def train_rank(
    group: Group, rank: int, batch: int, steps: int
) -> tuple[list[float], torch.Tensor, dict[str, int], int, int, int]:
    """One rank: losses of whole batches, logits of the merged model, bytes kept, elements sent per
    step, and how many parameters are frozen and trained."""
    from distributed.instruments.one_device import bytes_kept
    from distributed.replicas import broadcast_module
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.simple_ddp import average_gradients
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import Alone, make_network, train, train_together

    model = make_network(depth=3).double().to(group.device)
    first = Alone(model, torch.optim.AdamW, lr=0.01)
    train(model, first.step, batches(1797, 256, 30), 256)  # this is the checkpoint
    model.zero_grad()

    mirror = nn.Sequential(nn.Unflatten(1, (8, 8)), Mirror(), nn.Flatten(1), model)
    frozen = sum(p.numel() for p in mirror.parameters())
    trained = adapter_parameters(mirror, rank)
    torch.manual_seed(group.rank)
    add_adapters(mirror, rank, alpha=2.0 * rank)
    broadcast_module(mirror, group)
    ring = RingGroup(group)
    ring.trace = trace = Trace(group.rank)
    optimizer = torch.optim.AdamW([p for p in mirror.parameters() if p.requires_grad], lr=0.01)
    kept: dict[str, int] = {}

    def step() -> None:
        average_gradients(mirror, ring)  # a frozen parameter has none
        optimizer.step()
        kept.update(bytes_kept(mirror, optimizer))
        optimizer.zero_grad()

    losses = train_together(group, mirror, step, batch, steps)
    images = torch.from_numpy(digits()[0]).double().to(group.device)
    with torch.no_grad():
        adapted = mirror(images)
        merge_adapters(mirror)
        merged = mirror(images)
    torch.testing.assert_close(merged, adapted, rtol=1e-9, atol=1e-9)
    return losses, merged.cpu(), kept, trace.sent // (8 * steps), frozen, trained


class Mirror(nn.Module):
    """Images [b, 8, 8] → the same with left and right exchanged."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(-1)


if __name__ == "__main__":
    run_script(main)
