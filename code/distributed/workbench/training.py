"""Training loop for the networks of this book: digits, on one device and on every rank."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from distributed import Group, launch
from distributed.dp import shard
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches, digits

Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


def make_network(
    seed: int = 0, width: int = 128, depth: int = 1, norm: bool = False
) -> nn.Sequential:
    """Network for the digits, x[b, 64] → logits y[b, 10]: a seed always gives the same weights.

    With `norm`, a LayerNorm follows the first layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = nn.Linear(64, width)
        layers: list[nn.Module] = (
            [first, nn.LayerNorm(width), nn.ReLU()] if norm else [first, nn.ReLU()]
        )
        for _ in range(depth - 1):
            layers.append(nn.Sequential(nn.Linear(width, width), nn.ReLU()))
        return nn.Sequential(*layers, nn.Linear(width, 10))


def make_deep(depth: int = 6, width: int = 64, seed: int = 0) -> nn.Sequential:
    """Many sigmoids one after the other: gradients of the first layers are very small."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(64 if not layers else width, width), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(
    model: nn.Module,
    step: Callable[[], Any],
    rows_of_steps: Iterable[np.ndarray],
    examples: float,
    phase: Phase = contextlib.nullcontext,
) -> list[float]:
    """Train on these rows of the digits: losses, each the sum over its rows ÷ `examples`.

    `step()` has to make gradients zero or None. Each part of a step runs in `phase(name)`, with the
    names "data", "forward", "backward" and "step".
    """
    with phase("data"):
        where = next(model.parameters())
        images, labels = (torch.from_numpy(array).to(where.device) for array in digits())
        images = images.to(where.dtype)
    losses = []
    for rows in rows_of_steps:
        with phase("forward"):
            logits = model(images[rows])
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = nn.functional.cross_entropy(logits, labels[rows], reduction="sum") / examples
        with phase("backward"):
            loss.backward()
        losses.append(loss.item())
        del logits, loss
        with phase("step"):
            step()
    return losses


def train_with_sgd(
    group: Group,
    module: nn.Module,
    batch: int,
    steps: int,
    after_backward: Callable[[nn.Module, Group], Any] | None = None,
) -> tuple[list[float], Trace]:
    """Train `module` on this rank's rows: the losses of the whole batches, and a timeline.

    `after_backward(module, group)` averages the gradients, unless the module does it itself.
    """
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    group.trace = trace = Trace(group.rank)

    def step() -> None:
        if after_backward:
            after_backward(module, group)
        with trace.span("step"):
            optimizer.step()
            optimizer.zero_grad()

    def phase(name: str) -> Any:
        return trace.span(name) if name in ("forward", "backward") else contextlib.nullcontext()

    mine = (shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps))
    losses = train(module, step, mine, batch / group.size, phase)
    group.trace = None
    return group.all_reduce(torch.tensor(losses, dtype=torch.float64), "avg").tolist(), trace


def train_wrapped(
    group: Group, wrap: Callable[[nn.Module, Group], nn.Module], batch: int, steps: int
) -> tuple[list[float], Trace]:
    """Train a module in a wrapper that averages gradients: see `train_with_sgd`."""
    module = make_network(seed=group.rank, norm=True).to(group.device)
    return train_with_sgd(group, wrap(module, group), batch, steps)


def show_wrapper(
    wrap: Callable[[nn.Module, Group], nn.Module], ranks: int, batch: int, steps: int
) -> None:
    """Train with a wrapper, and print the losses and how many messages a step has."""
    losses, trace = launch(train_wrapped, wrap, batch, steps, ranks=ranks)[0]
    reduced = sum(span.name.startswith("all_reduce") for span in trace.spans)
    print(f"loss {losses[0]:.6f} → {losses[-1]:.6f}; {reduced / steps:.1f} all-reduces a step")
    assert losses[-1] < losses[0]


def train_together(
    group: Group, model: nn.Module, step: Callable[[], Any], batch: int, steps: int
) -> list[float]:
    """One rank: train on its rows of each batch; the losses of the whole batches."""
    mine = (shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps))
    losses = train(model, step, mine, examples=batch / group.size)
    return group.all_reduce(torch.tensor(losses, device=group.device), "avg").tolist()


class Alone:
    """A model and its optimizer on one device; every stage of ZeRO has these two methods, too.

    PyTorch's own stages are a model and an optimizer as well: then these are what a rank has.
    """

    def __init__(
        self, model: nn.Module, optimizer_class: type[torch.optim.Optimizer], **settings: Any
    ):
        self.model = model
        self.optimizer = optimizer_class(model.parameters(), **settings)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What training keeps, by what it is for."""
        parameters: list[torch.Tensor] = [*self.model.parameters()]
        states = [state.values() for state in self.optimizer.state.values()]
        return {
            "parameters": parameters,
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "optimizer states": [t for s in states for t in s if isinstance(t, torch.Tensor)],
        }
