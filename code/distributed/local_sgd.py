"""Local SGD: each rank trains alone for some steps, and then the weights are averaged.

    H times:  W_r ← W_r − η dW_r, on this rank's data, without a message
    then:     Δ = W − mean over ranks of W_r,   W ← outer optimizer(W, Δ)

With an outer step of plain SGD with rate 1 this is averaging (McMahan et al. 2017; Stich 2019);
with Nesterov momentum it is DiLoCo (Douillard et al. 2023). It sends 1/H of the bytes per step.
"""

import re
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script


class LocalSGD:
    """Average the weights every `every` steps; in between, each rank changes its own.

    Call `step()` after each optimizer step, and `finish()` when training ends, because ranks have
    different weights between two averages. Buffers aren't averaged. `outer_lr` and `momentum` are
    those of the outer optimizer, which is SGD, with Nesterov momentum unless `momentum` is 0.
    Raises ValueError for every < 1.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        every: int,
        outer_lr: float = 1.0,
        momentum: float = 0.0,
    ):
        if every < 1:
            raise ValueError(f"every={every}: 1 (in each step) or more")
        broadcast_module(module, group)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.group, self.every = group, every
        self.steps = 0  # since the last average
        self.agreed = [p.detach().clone().requires_grad_() for p in self.parameters]
        self.outer = torch.optim.SGD(self.agreed, outer_lr, momentum, nesterov=momentum > 0)

    def step(self) -> None:
        """Count a local step, and average after `every` of them."""
        self.steps += 1
        if self.steps == self.every:
            self.average()

    def finish(self) -> None:
        """Average once more if there were steps since the last average."""
        if self.steps:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Take an outer step with the mean change, after which all ranks have the same weights."""
        self.steps = 0
        apart = [w - p for w, p in zip(self.agreed, self.parameters, strict=True)]
        # One message, in the widest dtype of all parameters.
        flat = self.group.all_reduce(torch.cat([d.reshape(-1) for d in apart]), "avg")
        for w, delta in zip(self.agreed, flat.split([d.numel() for d in apart]), strict=True):
            w.grad = delta.view(w.shape).to(w.dtype)
        self.outer.step()
        for w, p in zip(self.agreed, self.parameters, strict=True):
            p.copy_(w)


class Gossip:
    """Gossip: each rank averages with its two neighbors in a ring (Lian et al. 2017).

    W_r ← (W_{r−1} + W_r + W_{r+1}) / 3: each rank sends 2Ψ elements per step, however many ranks
    there are, and waits for two others only. Replicas stay close to each other, but not equal.
    With two ranks, each has a single neighbor and sends Ψ elements.
    """

    def __init__(self, module: nn.Module, group: Group):
        broadcast_module(module, group)
        self.parameters, self.group = [p for p in module.parameters() if p.requires_grad], group

    @torch.no_grad()
    def step(self) -> None:
        """Average with the neighbors, after an optimizer step."""
        group, n = self.group, self.group.size
        if n == 1:
            return
        flat = torch.cat([p.reshape(-1) for p in self.parameters])
        left, right = (group.rank - 1) % n, (group.rank + 1) % n
        received = [group.exchange(flat, right, torch.empty_like(flat), left)]
        if left != right:
            received.append(group.exchange(flat, left, torch.empty_like(flat), right))
        flat = sum(received, flat) / (1 + len(received))
        parts = flat.split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.copy_(part.view(p.shape))


@torch.no_grad()
def distance(group: Group, module: nn.Module) -> float:
    """Distance of this rank's weights from the mean over all ranks, relative to their size."""
    flat = torch.cat([p.reshape(-1) for p in module.parameters()])
    mean = group.all_reduce(flat.clone(), "avg")
    return ((flat - mean).norm() / mean.norm()).item()


def main(ranks: int = 4, batch: int = 128, steps: int = 64) -> None:
    """Average in every step, every 8 steps, with outer momentum, and only with neighbors."""
    for way in ("every 1", "every 8", "every 8 momentum", "gossip"):
        losses, sent, apart = launch(train_rank, way, batch, steps, ranks=ranks, device="cpu")[0]
        last = np.mean(losses[-8:])
        print(f"{way:17} loss {last:.3f}, {sent / steps:9,.0f} bytes a step, apart by {apart:.1e}")
        assert last < losses[0]


def train(
    group: Group, agree: LocalSGD | Gossip, module: nn.Module, rows: Iterable[np.ndarray], lr: float
) -> list[float]:
    """Train on this rank's rows of the digits; the mean loss over ranks in each step."""
    from distributed.workbench.data import digits

    images, labels = (torch.from_numpy(array) for array in digits())
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    losses = []
    for mine in rows:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        agree.step()
        losses.append(loss.detach())
    if isinstance(agree, LocalSGD):
        agree.finish()
    return group.all_reduce(torch.stack(losses), "avg").tolist()


def train_rank(
    group: Group, way: str, batch: int, steps: int, seed: int = 0, lr: float = 0.1
) -> tuple[list[float], int, float]:
    """One rank: losses, bytes sent, and distance of the replicas at the end.

    `way` is "gossip", "every H", or "every H momentum" for DiLoCo's outer step. Raises ValueError
    for anything else.
    """
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network

    if not re.fullmatch(r"gossip|every \d+( momentum)?", way):
        raise ValueError(f'way={way!r}: "gossip", "every 8" or "every 8 momentum"')
    rings, module = RingGroup(group), make_network(seed, norm=True)
    agree: LocalSGD | Gossip
    if way == "gossip":
        agree = Gossip(module, rings)
    else:
        outer = (0.7, 0.9) if "momentum" in way else (1.0, 0.0)
        agree = LocalSGD(module, rings, int(way.split()[1]), *outer)
    rings.trace = trace = Trace(group.rank)
    rows = (shard(r, group.rank, group.size) for r in batches(1797, batch, steps, seed))
    losses = train(group, agree, module, rows, lr)
    return losses, trace.sent, distance(group, module)


if __name__ == "__main__":
    run_script(main)
