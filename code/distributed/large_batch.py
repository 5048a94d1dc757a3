"""Batch size: how many steps and which learning rate a batch needs, given the noise scale.

    gradient of b examples = true gradient + noise, whose variance falls as 1/b
    noise scale B = tr(Σ)/|G|²
    steps to a loss: S(b) = S∞ (1 + B/b); examples: b S(b); best rate: η(b) = η∞ / (1 + B/b)

Far below B, twice the batch takes half the steps, with twice the rate. Far above it, a larger batch
doesn't help (McCandlish et al. 2018, §2). B is measured from gradients of two batch sizes, which
data parallelism has anyway: those of single ranks, and their mean.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script

TRAINED = 1500  # digits to train on; the others are for testing


class NoiseScale(NamedTuple):
    """|G|² of the true gradient and tr(Σ) of one example's noise, both estimated without bias."""

    squared: float
    noise: float

    @property
    def examples(self) -> float:
        """B = tr(Σ)/|G|²: approximately the batch above which more examples help less."""
        return self.noise / self.squared


def estimate(small: float, large: float, b_small: int, b_large: int) -> NoiseScale:
    """Noise scale from the mean |g|² of batches of b_small and of b_large examples (appendix A.1).

    E|g_b|² = |G|² + tr(Σ)/b for each b: two equations. Raises ValueError for equal sizes.
    """
    if not 0 < b_small < b_large:
        raise ValueError(f"b_small={b_small}, b_large={b_large}: two sizes, the smaller one first")
    squared = (b_large * large - b_small * small) / (b_large - b_small)
    noise = (small - large) / (1 / b_small - 1 / b_large)
    return NoiseScale(squared, noise)


def noise_of_ranks(group: Group, gradients: list[torch.Tensor]) -> tuple[float, float]:
    """|g|² of one rank's gradients, averaged over the ranks, and |mean over ranks of g|².

    Sends one more number than the all-reduce of a step. The gradients become the mean.
    """
    flat = torch.cat([g.reshape(-1) for g in gradients])
    wide = torch.promote_types(flat.dtype, torch.float32)  # squares of 1e-4 are 0 in float16
    small = group.all_reduce(flat.to(wide).square().sum(), "avg").item()
    large = group.all_reduce(flat, "avg").to(wide).square().sum().item()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(mean.view(g.shape))
    return small, large


def more_steps(noise_scale: float, small: float, large: float) -> float:
    """Steps of a small batch over those of a large one: (1 + B/small) / (1 + B/large).

    This is also the best rate of the large batch over that of the small one.
    """
    return (1 + noise_scale / small) / (1 + noise_scale / large)


def warm_up(steps: int) -> Callable[[int], float]:
    """Share of the rate in step i, which rises to 1 in `steps` steps (Goyal et al. 2017)."""
    return lambda i: min(1.0, (i + 1) / max(1, steps))


def scaled(rate: float, batch: int, base: int, rule: str) -> float:
    """Rate for a batch, from the rate that is good for `base`: "linear", "root" or "same".

    Linear is for SGD, because one step replaces k of them (Goyal et al. 2017, §2.1). The root is
    for Adam, whose steps don't grow with the gradient (Malladi et al. 2022).
    """
    factors = {"linear": batch / base, "root": (batch / base) ** 0.5, "same": 1.0}
    if rule not in factors:
        raise ValueError(f"rule={rule!r}: choose one of {', '.join(factors)}")
    return rate * factors[rule]


class Run(NamedTuple):
    """Losses of all steps, steps until the loss reached the goal (None: never), test accuracy."""

    losses: list[float]
    steps_to_goal: int | None
    accuracy: float


def tune(
    batch: int, rates: Sequence[float], most: int, goal: float, seeds: int = 3
) -> tuple[float, list[int | None]]:
    """Rate that reaches the goal in the fewest steps, and the steps of each seed with that rate.

    The first seed decides, and a rate is given up when it needs more steps than the best so far.
    Raises ValueError if no rate reaches the goal in `most` steps.
    """
    best, fewest = None, most
    for rate in rates:
        needed = train(batch, rate, fewest, goal).steps_to_goal
        if needed is not None and (best is None or needed < fewest):
            best, fewest = rate, needed
    if best is None:
        raise ValueError(f"rates={rates}: none reaches {goal} in most={most} steps; allow more")
    others = [train(batch, best, most, goal, seed=seed).steps_to_goal for seed in range(1, seeds)]
    return best, [fewest, *others]


def follow_noise(
    group: Group,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Iterable[torch.Tensor],
    batch: int,
) -> NoiseScale:
    """Train on this rank's `losses`, which are computed one at a time; noise scale of all steps.

    Each loss is the mean over this rank's batch / N examples. |g|² is averaged over steps before
    the noise scale is computed, because that of a single step can be anything, even negative.
    Raises ValueError for one rank, and for a batch that isn't a multiple of the ranks, because |g|²
    would then belong to different batch sizes.
    """
    if group.size < 2 or batch % group.size:
        raise ValueError(f"batch={batch}, {group.size} ranks: 2 or more, and a multiple of them")
    found = []
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        found.append(
            noise_of_ranks(group, [p.grad for p in model.parameters() if p.grad is not None])
        )
        optimizer.step()
    small, large = np.mean(found, axis=0).tolist()
    return estimate(small, large, batch // group.size, batch)


def main(ranks: int = 4, batch: int = 64, steps: int = 40) -> None:
    """Measure the noise scale, predict steps to one loss for several batches, and count them."""
    if batch % ranks or ranks < 2:
        raise ValueError(f"batch={batch}, ranks={ranks}: 2 ranks or more, and a multiple of them")
    scale = launch(measure_noise, batch, steps, 0.2, ranks=ranks, device="cpu")[0]
    print(f"noise scale {scale.examples:,.0f} examples, from {steps} steps of batch {batch}")
    assert scale.noise > 0
    known = train(batch, 0.2, 400, goal=0.3).steps_to_goal
    assert known is not None
    for size in (16, 64, 256):
        ratio = more_steps(scale.examples, size, batch)
        needed = train(size, 0.2 / ratio, 400, goal=0.3).steps_to_goal
        print(f"batch {size:3}: loss 0.3 predicted after {known * ratio:.0f} steps, took {needed}")


def train(
    batch: int,
    rate: float,
    steps: int,
    goal: float = 0.0,
    warm: int = 0,
    optimizer: str = "SGD",
    seed: int = 0,
) -> Run:
    """Train on one device until the running mean of the loss is below `goal`.

    On N ranks with a shard of the batch each, the steps are the same, so one device is enough here.
    Raises ValueError for an optimizer that torch.optim doesn't have.
    """
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    if not hasattr(torch.optim, optimizer):
        raise ValueError(f"optimizer={optimizer!r}: a name from torch.optim, like SGD or Adam")
    images, labels = (torch.from_numpy(array) for array in digits())
    model = make_network(seed, norm=True)
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, warm_up(warm))
    losses: list[float] = []
    reached, mean = None, None
    for rows in batches(TRAINED, batch, steps, seed):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item())
        mean = losses[-1] if mean is None else 0.8 * mean + 0.2 * losses[-1]
        if mean < goal or not np.isfinite(mean):
            reached = len(losses) if mean < goal else None
            break
    with torch.no_grad():
        right = model(images[TRAINED:]).argmax(1) == labels[TRAINED:]
    return Run(losses, reached, right.float().mean().item())


def measure_noise(group: Group, batch: int, steps: int, rate: float) -> NoiseScale:
    """One rank: learn digits with shards of the batch, and measure the noise scale."""
    from distributed.dp import shard
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    images, labels = (torch.from_numpy(array) for array in digits())
    model = make_network(norm=True)
    shards = (shard(rows, group.rank, group.size) for rows in batches(TRAINED, batch, steps))
    losses = (nn.functional.cross_entropy(model(images[mine]), labels[mine]) for mine in shards)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return follow_noise(group, model, optimizer, losses, batch)


if __name__ == "__main__":
    run_script(main)
