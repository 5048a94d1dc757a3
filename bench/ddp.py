"""A training step with our DDP against PyTorch's, in turns, on ranks that are up and warm."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.pairs import summary
from distributed import Group, world
from distributed.ddp import DistributedDataParallel
from distributed.shared_memory import SharedGroup
from distributed.simple_ddp import average_gradients
from distributed.workbench.measure import seconds
from distributed.workbench.transformer import Config, make_model

MODELS = ["transformer", "mlp"]
OURS = ["ddp", "ddp_by_hand", "ddp_one_bucket", "ddp_shared"]  # the ladder, and shared memory


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    """ddp/transformer/r4 and so on: the peer is PyTorch's DistributedDataParallel, on gloo."""
    for ours in OURS:
        for model in MODELS:
            for ranks in (2, 4):
                name = f"{ours}/{model}/r{ranks}"
                yield name, partial(against_torch, name, ours, model, ranks)


def against_torch(name: str, ours: str, model: str, ranks: int, quick: bool) -> dict[str, Any]:
    pairs = 3 if quick else 15
    with world(ranks, device="cpu") as run:
        times, size = run(in_turns, ours, model, pairs)[0]
    return summary(name, times, "torch DDP", ranks, size)


def make(model: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """A module of some megabytes, and the loss of one batch."""
    if model == "transformer":
        config = Config(v=96, t=64, d=256, layers=4, heads=4)
        batch = torch.randint(96, (4, 65))

        def loss(module: nn.Module) -> torch.Tensor:
            logits = module(batch[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

        return make_model(config), loss
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(768, 768), nn.ReLU()) for _ in range(8)))
    x = torch.randn(32, 768)
    return module, lambda module: module(x).square().mean()


def in_turns(
    group: Group, ours: str, model: str, pairs: int
) -> tuple[list[tuple[float, float]], int]:
    """Times of one step, ours and PyTorch's, and the bytes of all gradients."""
    mine, loss = make(model)
    theirs, _ = make(model)
    used = SharedGroup(group) if ours == "ddp_shared" else group
    wrapped = mine
    if ours != "ddp_by_hand":
        sizes = (1 << 40, 1 << 40) if ours == "ddp_one_bucket" else (25_000_000, 1_000_000)
        wrapped = DistributedDataParallel(mine, used, *sizes)
    peer = nn.parallel.DistributedDataParallel(theirs)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.0) for m in (mine, theirs)]

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, by_hand: bool) -> None:
        optimizer.zero_grad()
        loss(module).backward()
        if by_hand:
            average_gradients(module, group)
        optimizer.step()

    def once(i: int) -> float:
        module, by_hand = ((wrapped, ours == "ddp_by_hand"), (peer, False))[i]
        return seconds(group, lambda: step(module, optimizers[i], by_hand), 1, warm_up=0)[0]

    times = [(once(0), once(1)) for _ in range(pairs + 3)][3:]  # buckets are rebuilt first
    return times, sum(p.nbytes for p in mine.parameters())
