"""A training step with each stage of ZeRO against PyTorch's, in turns, on ranks that are warm."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from bench.ddp import MODELS, make
from bench.pairs import summary
from distributed import Group, world
from distributed.ring_group import RingGroup
from distributed.shared_memory import SharedGroup
from distributed.workbench.measure import seconds
from distributed.workbench.memory_meter import peak_of_step
from distributed.zero import Zero1, Zero2, Zero3
from distributed.zero.blocks import check_blocks

GROUPS: dict[str, Callable[[Group], Group]] = {
    "gloo": lambda group: group,
    "ring": RingGroup,
    "shared": SharedGroup,
}
STAGES = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
PEERS = {
    "zero1": "torch DDP + ZeroRedundancyOptimizer",
    "zero2": "torch fully_shard, kept after forward",
    "zero3": "torch fully_shard",
}


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    """Ids such as zero1/gloo/transformer/r4: our stage, transport, model and number of ranks."""
    for stage in STAGES:
        for kind in GROUPS:
            for model in MODELS:
                for ranks in (2, 4):
                    name = f"{stage}/{kind}/{model}/r{ranks}"
                    yield name, partial(against_torch, name, stage, kind, model, ranks)


def against_torch(
    name: str, stage: str, kind: str, model: str, ranks: int, quick: bool
) -> dict[str, Any]:
    pairs = 3 if quick else 15
    with world(ranks, device="cpu") as run:
        times, size = run(in_turns, stage, kind, model, pairs)[0]
        peaks = zip(*run(peaks_of_rank, stage, kind, model), strict=True)
    row = summary(name, times, PEERS[stage], ranks, size)
    return {**row, **dict(zip(("peak_bytes", "peer_peak_bytes"), map(max, peaks), strict=True))}


def in_turns(
    group: Group, stage: str, kind: str, model: str, pairs: int
) -> tuple[list[tuple[float, float]], int]:
    """Times of one step, ours and PyTorch's, and the bytes of all gradients."""
    module, loss = make(model)
    size = sum(p.nbytes for p in module.parameters())
    our_step = ours(group, stage, kind, module, loss)
    their_step = peer(stage, *make(model))

    def once(step: Callable[[], None]) -> float:
        return seconds(group, step, 1, warm_up=0)[0]

    return [(once(our_step), once(their_step)) for _ in range(pairs + 3)][3:], size


def peaks_of_rank(group: Group, stage: str, kind: str, model: str) -> tuple[int, int]:
    """Bytes alive at the peak of a step, ours and PyTorch's, by the same counter.

    It doesn't see what C++ allocates within one operation, in either of them.
    """
    mine = peak_of_step(lambda: ours(group, stage, kind, *make(model)))
    return mine, peak_of_step(lambda: peer(stage, *make(model)))


def ours(
    group: Group,
    stage: str,
    kind: str,
    module: nn.Module,
    loss: Callable[[nn.Module], torch.Tensor],
) -> Callable[[], None]:
    """One training step with a stage of this book."""
    settings: dict[str, Any] = {"lr": 1e-4}
    if stage == "zero3" and kind == "shared":
        settings["prefetch"] = False  # there, to gather is to copy, on the cores that compute
    zero = STAGES[stage](module, torch.optim.Adam, GROUPS[kind](group), **settings)

    def step() -> None:
        loss(module).backward()
        zero.step()

    return step


def peer(
    stage: str, module: nn.Module, loss: Callable[[nn.Module], torch.Tensor]
) -> Callable[[], None]:
    """One training step with PyTorch's counterpart of a stage, with blocks as ours has them."""
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    if stage == "zero1":
        wrapped = nn.parallel.DistributedDataParallel(module)
        optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=1e-4)
    else:
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for part in [*check_blocks(module, None), module]:
            fully_shard(part, mesh=mesh, reshard_after_forward=stage == "zero3")
        wrapped = module
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)

    def step() -> None:
        loss(wrapped).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
