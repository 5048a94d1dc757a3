"""The loop that DDP's rungs are tried on: an optimizer of PyTorch, and digits shared by ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.dp import shard
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches, digits


def make_network(seed: int = 0) -> nn.Module:
    """Images x[b, 64] → logits y[b, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10))


def train(
    module: nn.Module,
    group: Group,
    batch: int,
    steps: int,
    after_backward: Callable[[nn.Module, Group], Any] | None = None,
) -> tuple[list[float], Trace]:
    """One rank, on its rows of each batch: mean losses of whole batches, and what took how long.

    `after_backward(module, group)` averages the gradients, unless the module does it by itself.
    """
    images, labels = (torch.from_numpy(array).to(group.device) for array in digits())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    group.trace = trace = Trace(group.rank)
    losses = []
    for of_all in batches(1797, batch, steps):
        rows = torch.from_numpy(shard(of_all, group.rank, group.size))
        with trace.span("forward"):
            loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
        with trace.span("backward"):
            optimizer.zero_grad()
            loss.backward()
        if after_backward:
            after_backward(module, group)
        with trace.span("step"):
            optimizer.step()
        losses.append(loss.item())
    group.trace = None
    means = group.all_reduce(torch.tensor(losses, dtype=torch.float64), op="avg")
    return means.tolist(), trace


def train_wrapped(
    group: Group, wrap: Callable[[nn.Module, Group], nn.Module], batch: int, steps: int
) -> tuple[list[float], Trace]:
    """The same with a wrapper that averages: the losses of whole batches, and what happened."""
    model = wrap(make_network(seed=group.rank).to(group.device), group)
    return train(model, group, batch, steps)
