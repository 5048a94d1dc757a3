"""BatchNorm over all ranks: statistics of the whole batch, forward and backward.

    μ[c] = Σ x[b, c] / B      σ²[c] = Σ (x[b, c] − μ[c])² / B      y = γ (x − μ) / √(σ² + ε) + β

The sums run over the rows of *all* ranks: {partial over ranks} → all_reduce. The backward pass
needs two more sums over all rows, because each row's gradient depends on every other row. If x has
16 bits, rows are counted and sums are made in float32, because float16 ends at 65,504.
"""

from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script


class SyncedNorm(torch.autograd.Function):
    """x[b, c, ...] → x̂[b, c, ...], normalized by all ranks' mean and variance of each channel.

    A second derivative, as of a gradient penalty, is refused with RuntimeError: the sums of that
    pass are not exchanged.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, group: Group, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        over = [0, *range(2, x.ndim)]
        rows = x.new_full((1,), x.numel() / x.shape[1])
        count, total = group.all_reduce(torch.cat([rows, x.sum(over)])).split([1, x.shape[1]])
        mean = total / count
        # A second message: Σx² − (Σx)² in the first would lose all digits where μ is large.
        centred = x - across(mean, x)
        variance = group.all_reduce((centred * centred).sum(over)) / count
        scale = (variance + eps).rsqrt()
        normed = centred * across(scale, x)
        ctx.save_for_backward(normed, scale, count)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, count)
        return normed, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """dx = scale · (dx̂ − mean(dx̂) − x̂ · mean(dx̂ x̂)), both means over the rows of all ranks."""
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: SyncBatchNorm has no second derivative")
        normed, scale, count = ctx.saved_tensors
        grad, over = grads[0], [0, *range(2, normed.ndim)]
        sums = torch.stack([grad.sum(over), (grad * normed).sum(over)])
        mean, along = ctx.group.all_reduce(sums) / count
        inner = grad - across(mean, grad) - normed * across(along, grad)
        return inner * across(scale, grad), None, None


def across(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """v[c] → v[1, c, 1, ...], to meet x[b, c, ...]."""
    return channels.view(1, -1, *[1] * (x.ndim - 2))


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """`norm`, a torch BatchNorm, with statistics over all ranks while it trains.

    It holds the tensors of `norm` under the same names, so either's checkpoint fits the other.
    Ranks may have different numbers of rows. x may have 16 bits and the norm 32, as under autocast;
    y has x's dtype. Raises ValueError for a norm without running statistics or with none to learn,
    and for fewer than two rows in all.
    """

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, group: Group):
        if not (norm.affine and norm.track_running_stats):
            raise ValueError("norm: SyncBatchNorm needs affine=True and track_running_stats=True")
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.group = group
        self.train(norm.training)

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"x: {list(x.shape)} has no channels: give x[b, c, ...]")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x[b, c, ...] → y[b, c, ...]."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        normed, mean, variance, count = SyncedNorm.apply(wide, self.group, self.eps)
        if count.item() < 2:
            raise ValueError(
                f"x: number of rows on all ranks together: {int(count)}; a variance needs 2 or more"
            )
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = self.momentum
            if share is None:  # the mean of all batches so far
                share = 1 / self.num_batches_tracked.item()
            unbiased = variance * count / (count - 1)
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                running.copy_(torch.lerp(running.to(new.dtype), new, share))
        y = normed * across(self.weight, x) + across(self.bias, x)
        return y.to(x.dtype)


def convert(module: nn.Module, group: Group) -> nn.Module:
    """`module` with every BatchNorm in it replaced by one over all ranks; weights are kept.

    A norm that is used in several places is one module in all of them, before and after.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return SyncBatchNorm(module, group)
    synced: dict[nn.Module, SyncBatchNorm] = {}
    for path, part in [*module.named_modules(remove_duplicate=False)]:
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            if part not in synced:
                synced[part] = SyncBatchNorm(part, group)
            module.set_submodule(path, synced[part])
    return module


def main(ranks: int = 4, rows: int = 2) -> None:
    """A few rows on each rank: the running mean is that of all rows."""

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(group.rank)
        x = torch.randn(rows, 3, generator=generator) + group.rank
        norm = SyncBatchNorm(nn.BatchNorm1d(3, momentum=1.0), group)
        norm(x)
        assert norm.running_mean is not None
        return x, norm.running_mean

    results = launch(run, ranks=ranks)
    whole = torch.cat([x for x, _ in results])
    print("mean of all rows ", [f"{v:.4f}" for v in whole.mean(0).tolist()])
    print("on every rank    ", [f"{v:.4f}" for v in results[0][1].tolist()])
    for _, mean in results:
        torch.testing.assert_close(mean, whole.mean(0))


if __name__ == "__main__":
    run_script(main)
