"""Distributed data parallelism by hand: any module, any optimizer, a few lines more.

    dW[...]{partial over ranks} → all_reduce(avg) → dW[...], for every parameter

All ranks start from rank 0's weights and buffers. After each backward pass they average every
gradient, and so their optimizers take the same steps.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace


def check_same_model(module: nn.Module, group: Group) -> None:
    """Raise ValueError where this rank's module is not shaped as rank 0's, naming the tensor."""
    tensors = module.state_dict().items()
    lines = [f"{name} {str(tensor.dtype)[6:]}{list(tensor.shape)}" for name, tensor in tensors]
    check_same_lines("tensor", lines, group)


def check_same_lines(what: str, lines: list[str], group: Group) -> None:
    """Raise ValueError for the first line, on a tensor or a parameter (`what`), that differs."""
    theirs = broadcast_text("\n".join(lines), group).split("\n")
    mine = "\n".join(lines).split("\n")
    for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            raise ValueError(f"module: {what} {number} is {a} on rank {group.rank}, {b} on rank 0")
    if len(mine) != len(theirs):
        raise ValueError(f"module: rank {group.rank} and rank 0 have different numbers of {what}s")


def broadcast_text(text: str, group: Group) -> str:
    """Rank 0's text, on every rank."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8)
    size = group.broadcast(torch.tensor([len(data)], device=group.device)).item()
    data = data if group.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
    return bytes(group.broadcast(data.to(group.device)).tolist()).decode()


def broadcast_module(module: nn.Module, group: Group) -> None:
    """Rank 0's weights and buffers, on every rank."""
    check_same_model(module, group)
    for tensor in [*module.parameters(), *module.buffers()]:
        group.broadcast(tensor.data)


def refuse_to_copy(wrapper: nn.Module) -> Any:
    """For `__getstate__`: autograd's hooks stay with the parameters that they were given to."""
    name = type(wrapper).__name__
    raise TypeError(f"a {name} cannot be copied or saved: wrap a copy of its module")


def average_gradients(module: nn.Module, group: Group) -> None:
    """dW[...]{partial over ranks} → dW[...] of every parameter: their mean over the ranks.

    It is made in the gradient's dtype, as `Group.all_reduce` says.
    """
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="avg")


def make_network(seed: int = 0) -> nn.Module:
    """Images x[b, 64] → logits y[b, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10))


def train(
    module: nn.Module,
    group: Group,
    rows_of_steps: Iterable[torch.Tensor],
    average: bool = True,
) -> list[float]:
    """Train on this rank's rows of the digits; each step is recorded in the group's trace."""
    from distributed.workbench.data import digits

    images, labels = (torch.from_numpy(array).to(group.device) for array in digits())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    trace = group.trace or Trace(group.rank)
    losses = []
    for rows in rows_of_steps:
        with trace.span("forward"):
            loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
        with trace.span("backward"):
            optimizer.zero_grad()
            loss.backward()
        if average:
            average_gradients(module, group)
        with trace.span("step"):
            optimizer.step()
        losses.append(loss.item())
    return losses


def train_by_hand(group: Group, batch: int, steps: int) -> tuple[list[float], dict, Trace]:
    """One rank: the mean loss of each whole batch, the final weights, and what took how long."""
    from distributed.dp import shard
    from distributed.workbench.data import batches

    module = make_network(seed=group.rank).to(group.device)  # every rank draws other weights
    broadcast_module(module, group)
    group.trace = trace = Trace(group.rank)
    shards = [shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps)]
    losses = train(module, group, (torch.from_numpy(rows) for rows in shards))
    group.trace = None
    mean = group.all_reduce(torch.tensor(losses, dtype=torch.float64), op="avg").tolist()
    return mean, {name: t.cpu() for name, t in module.state_dict().items()}, trace


def train_wrapped(
    group: Group, wrap: Callable[[nn.Module, Group], nn.Module], batch: int, steps: int
) -> tuple[list[float], Trace]:
    """The same with a wrapper that averages: the losses of whole batches, and what happened."""
    from distributed.dp import shard
    from distributed.workbench.data import batches

    model = wrap(make_network(seed=group.rank).to(group.device), group)
    group.trace = trace = Trace(group.rank)
    shards = [shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps)]
    losses = train(model, group, (torch.from_numpy(rows) for rows in shards), average=False)
    group.trace = None
    return group.all_reduce(torch.tensor(losses), op="avg").tolist(), trace


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train by hand on several ranks: replicas stay equal to the bit."""
    if batch % ranks:
        raise ValueError(f"batch={batch}: {ranks} ranks need a multiple, so that shards are equal")
    results = launch(train_by_hand, batch, steps, ranks=ranks)
    losses, weights, trace = results[0]
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step:3}: loss {losses[step]:.6f}")
    for name, tensor in weights.items():
        assert all((other[name] == tensor).all() for _, other, _ in results), name
    spent = {kind: trace.seconds(kind) for kind in ("compute", "communication")}
    share = spent["communication"] / sum(spent.values())
    print(f"replicas equal to the bit; {share:.0%} of a step is communication")


if __name__ == "__main__":
    run_script(main)
