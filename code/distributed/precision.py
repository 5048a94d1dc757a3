"""Mixed precision: compute and send in 16 bits, and update a master copy of the weights in fp32.

    half = W as 16 bits → forward, backward → d(scale · loss)/d half, in 16 bits
    all_reduce in 16 bits → / scale → W ← optimizer(W, dW) in 32 bits → half = W as 16 bits

A small update is lost if it is added to a 16-bit weight, so the optimizer updates an fp32 *master
copy*. Small gradients become zero in float16, so the loss is scaled up first (Micikevicius et al.
2018).
"""

import copy

import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script


class LossScale:
    """Loss scale: halved when a gradient overflows, doubled after `every` steps without overflow.

    It doesn't fall below `smallest`, because gradients that overflow without being scaled up are an
    error in the training, and a scale of zero would hide it.
    """

    def __init__(self, start: float = 2.0**16, every: int = 200, smallest: float = 1.0):
        self.scale, self.every, self.smallest, self.good = start, every, smallest, 0

    def update(self, finite: bool) -> None:
        """Adjust the scale after a step; `finite`: no gradient was inf or nan."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale = max(self.scale / 2, self.smallest)
        elif self.good % self.every == 0:
            self.scale *= 2


class MixedPrecision:
    """Training step in `dtype`: `half` computes, and `module` is the master copy in float32.

    Without `master`, the weights are kept in `dtype` only. Without a `loss_scale`, the loss isn't
    scaled. A BatchNorm stays in float32, because in 16 bits its running statistics would soon stop
    changing. Frozen parameters aren't updated, and a missing gradient counts as zero.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        dtype: torch.dtype,
        lr: float,
        loss_scale: LossScale | None = None,
        master: bool = True,
    ):
        broadcast_module(module, group)
        self.group, self.loss_scale, self.skipped = group, loss_scale, 0
        self.module, self.half = module, copy.deepcopy(module).to(dtype)
        for norm, half in zip(module.modules(), self.half.modules(), strict=True):
            if isinstance(half, nn.modules.batchnorm._BatchNorm):
                half.float()
                half._buffers = norm._buffers  # one for both: what `half` sees, `module` has
        kept = module if master else self.half
        pairs = zip(kept.parameters(), self.half.parameters(), strict=True)
        self.pairs = [pair for pair in pairs if pair[0].requires_grad]
        self.optimizer = torch.optim.SGD([kept for kept, _ in self.pairs], lr=lr)

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the scaled loss."""
        (loss * self.loss_scale.scale if self.loss_scale else loss).backward()

    @torch.no_grad()
    def step(self) -> None:
        """Average in 16 bits, unscale, and update in 32; skip the step if a gradient isn't finite.

        All ranks make the same decision, because they look at the same sum.
        """
        grads = []
        for _, half in self.pairs:
            grad = torch.zeros_like(half) if half.grad is None else half.grad
            grads.append(self.group.all_reduce(grad, "avg").float())
        finite = all(bool(g.isfinite().all()) for g in grads)
        if finite:
            scale = self.loss_scale.scale if self.loss_scale else 1.0
            for (kept, _), g in zip(self.pairs, grads, strict=True):
                kept.grad = (g / scale).to(kept.dtype)
            self.optimizer.step()
            for kept, half in self.pairs:
                half.copy_(kept)
        for buffer, its_half in zip(self.module.buffers(), self.half.buffers(), strict=True):
            if not torch.equal(its_half, buffer.to(its_half.dtype)):  # changed in the forward pass
                buffer.copy_(its_half)
        self.skipped += not finite
        if self.loss_scale:
            self.loss_scale.update(finite)
        for kept, half in self.pairs:
            kept.grad = half.grad = None


WAYS: dict[str, tuple[torch.dtype, bool, bool]] = {  # dtype, master copy, loss scale
    "float32": (torch.float32, True, False),
    "bfloat16": (torch.bfloat16, True, False),
    "bfloat16, no master copy": (torch.bfloat16, False, False),
    "float16, scaled": (torch.float16, True, True),
    "float16, not scaled": (torch.float16, True, False),
}


def main(ranks: int = 2, batch: int = 128, steps: int = 40) -> None:
    """Train a small network in each of WAYS."""
    from distributed.workbench.training import make_deep

    for way in WAYS:
        module = make_deep(depth=1)
        results = launch(train_rank, way, module, batch, steps, 0.5, ranks=ranks, device="cpu")
        losses, sent, skipped = results[0]
        print(f"{way:25} loss {losses[-1]:.4f}, {sent:,} bytes a step, {skipped} steps skipped")
        assert losses[-1] < losses[0]


def train_rank(
    group: Group,
    way: str,
    module: nn.Module,
    batch: int,
    steps: int,
    lr: float,
    smaller: float = 1.0,
    seed: int = 0,
) -> tuple[list[float], int, int]:
    """One rank: losses of the global batches, bytes sent per step, and number of skipped steps.

    `smaller` divides the loss and multiplies the rate, which changes nothing in exact arithmetic.
    Raises ValueError if `way` isn't one of WAYS.
    """
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches, digits

    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose one of {', '.join(WAYS)}")
    dtype, master, scaled = WAYS[way]
    rings = RingGroup(group)
    loss_scale = LossScale(2.0**16 * smaller) if scaled else None
    mixed = MixedPrecision(module, rings, dtype, lr * smaller, loss_scale, master)
    images, labels = (torch.from_numpy(array) for array in digits())
    images = images.to(dtype)
    rings.trace = trace = Trace(group.rank)
    losses = []
    for rows in batches(1797, batch, steps, seed):
        mine = shard(rows, group.rank, group.size)
        loss = nn.functional.cross_entropy(mixed.half(images[mine]).float(), labels[mine])
        mixed.backward(loss / smaller)
        mixed.step()
        losses.append(loss.detach())
    return (
        group.all_reduce(torch.stack(losses), "avg").tolist(),
        trace.sent // steps,
        mixed.skipped,
    )


if __name__ == "__main__":
    run_script(main)
