"""Data parallelism by hand: a common start on all ranks, and the mean of their gradients."""

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from playground.exercises.check import Draw, Wrong, compare, mark, on_ranks, whose

HINTS = [
    "All ranks need the same start: rank 0's parameters, and its buffers too, such as the running "
    "statistics of a BatchNorm. `group.broadcast(x)` works in place.",
    "A parameter that requires a gradient cannot be written in place: broadcast `tensor.data`.",
    '`group.all_reduce(parameter.grad, op="avg")`, not of the parameter. A frozen parameter has '
    "grad None: leave it out.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "is the sum over the ranks": "all_reduce",
    "divided by the number of ranks twice": "all_reduce",
    "only gradients should change": "all_reduce",
    "the mean of all ranks'": "all_reduce|reduce",
    "that of rank \\d, and not": "broadcast",
    "the buffer .* still its own": "parameters",
}
STEPS = 4


class Case(NamedTuple):
    """Rows of a batch, the learning rate, and what the rows and weights are drawn from."""

    rows: int = 12
    lr: float = 0.2
    seed: int = 0

    def network(self, rank: int) -> nn.Module:
        return network(self.seed + rank + 1)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 7)
        x = torch.randn(STEPS, self.rows, 6, generator=generator, dtype=torch.float64)
        return x, torch.randint(3, (STEPS, self.rows), generator=generator)


def drawn(draw: Draw, ranks: int) -> Case:
    return Case(ranks * draw(2, 8), draw(5, 30) / 100, draw(1, 1000))


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3, bias=False)
    ).double()
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean += seed
    norm.num_batches_tracked += 10 * seed
    norm.bias.requires_grad_(False)
    return module


def train(case: Case, module: nn.Module, rank: int, ranks: int, average: Callable[[], Any]) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=case.lr, momentum=0.9)
    module.eval()  # a BatchNorm's own statistics would differ between one device and several
    for x, labels in zip(*case.data(), strict=True):
        rows = slice(rank * case.rows // ranks, (rank + 1) * case.rows // ranks)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), labels[rows]).backward()
        average()
        optimizer.step()


State = dict[str, torch.Tensor]


def copy(module: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def run(
    group: Group, share: Callable[..., Any], average: Callable[..., Any], case: Case
) -> dict[str, Any]:
    """What each part of the answer leaves behind on this rank."""
    found: dict[str, Any] = {}
    module = case.network(group.rank)
    share(module, group)
    found["shared"] = copy(module)

    module = case.network(group.rank)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, mark(group.rank))
    try:
        average(module, group)
    except (TypeError, AttributeError) as error:
        if "NoneType" not in str(error):
            raise
        said = "1.bias is frozen and has no gradient (its grad is None): leave it out"
        raise ValueError(said).with_traceback(error.__traceback__) from None
    found["after"] = copy(module)
    found["grads"] = {n: p.grad for n, p in module.named_parameters() if p.requires_grad}

    module = case.network(group.rank)
    share(module, group)
    train(case, module, group.rank, group.size, lambda: average(module, group))
    found["trained"] = copy(module)

    module = case.network(group.rank)
    of_torch = nn.parallel.DistributedDataParallel(module)
    train(case, of_torch, group.rank, group.size, lambda: None)
    found["of PyTorch"] = copy(module)
    return found


def check(share: Callable[..., Any], average: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, case in chain([(3, Case())], ((2, drawn(draw, 2)) for _ in range(1))):
        alone = case.network(0)
        train(case, alone, 0, 1, lambda: None)
        buffers = dict(alone.named_buffers())
        results = on_ranks(run, share, average, case, ranks=ranks)
        of_all = [copy(case.network(rank)) for rank in range(ranks)]
        for rank, found in enumerate(results):
            for name, tensor in found["shared"].items():
                check_start(ranks, rank, name, tensor, [s[name] for s in of_all], name in buffers)
        for rank, found in enumerate(results):
            said = f"{ranks} ranks: after average(), "
            for name, tensor in found["after"].items():
                where = f"{said}rank {rank} has another {name}, and only gradients should change: "
                compare(name, tensor, of_all[rank][name], 0, where)
            for name, grad in found["grads"].items():
                check_gradient(f"{said}the gradient of {name} on rank {rank}", grad, ranks)
        for rank, found in enumerate(results):
            for name, tensor in alone.state_dict().items():
                where = f"{ranks} ranks, after {STEPS} steps, unlike one device: rank {rank}, "
                compare(name, found["trained"][name], tensor, 1e-9, where)
                where = f"{ranks} ranks, after {STEPS} steps, unlike PyTorch's DDP: rank {rank}, "
                compare(name, found["trained"][name], found["of PyTorch"][name], 1e-9, where)
    return (
        f"Right: all ranks start from rank 0's numbers, and for {STEPS} steps they are as one "
        "device, and as PyTorch's DistributedDataParallel."
    )


def check_start(
    ranks: int, rank: int, name: str, found: torch.Tensor, theirs: list[torch.Tensor], buffer: bool
) -> None:
    if torch.equal(found, theirs[0]):
        return
    kind = "buffer" if buffer else "parameter"
    said = f"{ranks} ranks: after share(), the {kind} {name} of rank {rank} is "
    if torch.equal(found, theirs[rank]):
        raise Wrong(f"{said}still its own, and not that of rank 0")
    for other, tensor in enumerate(theirs):
        if torch.equal(found, tensor):
            raise Wrong(f"{said}that of rank {other}, and not that of rank 0")
    total = torch.stack(theirs).double().sum(0)
    if torch.allclose(found.double(), total / ranks):
        raise Wrong(f"{said}the mean of all ranks', and not that of rank 0: broadcast it")
    if torch.allclose(found.double(), total):
        raise Wrong(f"{said}the sum of all ranks', and not that of rank 0: broadcast it")
    compare(name, found, theirs[0], 0, said + "not that of rank 0: ")


def check_gradient(what: str, grad: torch.Tensor, ranks: int) -> None:
    if grad is None:
        raise Wrong(f"{what} is gone (None)")
    for number in sorted(set(grad.flatten().tolist())):
        own = [rank for rank in range(ranks) if number == mark(rank)]
        if own:
            raise Wrong(f"{what} is rank {own[0]}'s alone: it was not averaged")
        if not whose(number, ranks):
            raise Wrong(f"{what} is the sum over the ranks, {ranks} times the mean")
        if not whose(round(number * ranks**2, 6), ranks):
            raise Wrong(f"{what} is divided by the number of ranks twice")
        if problem := whose(round(number * ranks, 6), ranks):
            raise Wrong(f"{what} is not the mean: {problem}")
