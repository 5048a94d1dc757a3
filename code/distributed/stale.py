"""Stale gradients: each step uses the mean gradient of `delay` steps earlier.

    W[t + 1] ← W[t] − η · mean over ranks of dW(W[t − delay])

On L = λw²/2 that is w[t + 1] = w[t] − ηλ w[t − delay], which comes to rest if
ηλ < 2 sin(π / (4 · delay + 2)), and swings wider and wider above it (Levin & May 1976). For large
delays the bound falls as 1/delay, and it does so for networks, too (Giladi et al. 2020).
"""

import math
from collections import deque

import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script


class Delayed:
    """Plain SGD on gradients[n]{partial over ranks} that are `delay` steps old.

    The first `delay` steps don't change the weights. Raises ValueError for a negative delay.
    """

    def __init__(self, parameters: list[nn.Parameter], group: Group, delay: int, lr: float):
        if delay < 0:
            raise ValueError(f"delay={delay}: 0 (no delay) or more steps")
        self.parameters, self.group, self.delay, self.lr = parameters, group, delay, lr
        self.under_way: deque[torch.Tensor] = deque()

    @torch.no_grad()
    def step(self, loss: torch.Tensor) -> None:
        """Average the gradient of `loss` over the ranks, and apply the oldest one."""
        gradients = torch.autograd.grad(loss, self.parameters)
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self.under_way.append(self.group.all_reduce(flat, "avg"))
        if len(self.under_way) > self.delay:
            oldest = self.under_way.popleft()
            sizes = [p.numel() for p in self.parameters]
            for p, g in zip(self.parameters, oldest.split(sizes), strict=True):
                p.sub_(g.view(p.shape), alpha=self.lr)


def stable(delay: int) -> float:
    """Largest ηλ at which a quadratic with curvature λ comes to rest: 2 without a delay."""
    return 2 * math.sin(math.pi / (4 * delay + 2))


def comes_to_rest(delay: int, rate: float, steps: int = 600) -> bool:
    """Whether w[t + 1] = w[t] − rate · w[t − delay] swings less and less."""
    w = [1.0] * (delay + 1)
    for _ in range(steps):
        w.append(w[-1] - rate * w[-1 - delay])
    return max(map(abs, w[steps // 2 :])) < max(map(abs, w[: steps // 2]))


def main(ranks: int = 2, lr: float = 0.3) -> None:
    """A quadratic on either side of the bound, then digits at a rate that is too large."""
    for delay in (0, 1, 4, 16):
        bound = stable(delay)
        below, above = (comes_to_rest(delay, share * bound) for share in (0.95, 1.05))
        print(f"delay {delay:2}: rests 5 % below ηλ = {bound:.3f}, {below}; 5 % above, {above}")
        assert below
        assert not above
    for delay in (0, 16):
        losses = launch(train_rank, delay, lr, 60, ranks=ranks, device="cpu")[0]
        print(f"digits, rate {lr}, delay {delay:2}: loss {losses[0]:.2f} → {losses[-1]:.2f}")
        assert (losses[-1] < losses[0]) == (delay == 0)


def train_rank(
    group: Group, delay: int, lr: float, steps: int, batch: int = 128, seed: int = 0
) -> list[float]:
    """One rank: the loss of each global batch of digits."""
    from distributed.dp import shard
    from distributed.replicas import broadcast_module
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    module = make_network(seed, norm=True)
    broadcast_module(module, group)
    delayed = Delayed(list(module.parameters()), group, delay, lr)
    images, labels = (torch.from_numpy(array) for array in digits())
    losses = []
    for rows in batches(1797, batch, steps, seed):
        mine = shard(rows, group.rank, group.size)
        loss = nn.functional.cross_entropy(module(images[mine]), labels[mine])
        delayed.step(loss)
        losses.append(loss.detach())
    return group.all_reduce(torch.stack(losses), "avg").tolist()


if __name__ == "__main__":
    run_script(main)
