"""Parameters laid end to end and cut into N equal shares: what every stage of ZeRO stands on.

    flat[N·s] = first parameter, second, …, padding;  rank r owns flat[r·s : (r + 1)·s]

A reduce-scatter of such a flat array gives each rank its share of the sum, an all-gather of the
shares gives everyone the whole. Only equal shares let both send the least.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.runtime.script import run_script

PARTITIONS = ("flat", "parameter")
# These update each number by itself, so that a parameter can be cut anywhere.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD",
)  # fmt: skip


class Piece(NamedTuple):
    """What a share has of one parameter: its numbers `of` (flattened) stand `at` in the share."""

    parameter: nn.Parameter
    of: slice
    at: slice


class Unit:
    """Parameters of one dtype that are cut up, sent and received together.

    `partition="flat"` cuts at equal lengths, even through a parameter: at most N − 1 numbers of
    padding. "parameter" gives each parameter whole to one rank, the largest first to whoever has
    least; shares are as long as the longest, and the rest is padding.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int, partition: str = "flat"):
        if partition not in PARTITIONS:
            raise ValueError(f"partition={partition!r}: choose one of {', '.join(PARTITIONS)}")
        self.parameters, self.ranks = list(parameters), ranks
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.trainable = parameters[0].requires_grad
        self.numel = sum(p.numel() for p in parameters)
        self.start: dict[nn.Parameter, int] = {}  # of each parameter, in flat
        if partition == "flat":
            self.share = -(-self.numel // ranks)
            ends = [0]
            for parameter in parameters:
                self.start[parameter] = ends[-1]
                ends.append(ends[-1] + parameter.numel())
            assert ends[-1] == self.numel <= ranks * self.share
        else:
            loads: list[list[nn.Parameter]] = [[] for _ in range(ranks)]
            for parameter in sorted(parameters, key=lambda p: -p.numel()):
                min(loads, key=lambda load: sum(p.numel() for p in load)).append(parameter)
            self.share = max(sum(p.numel() for p in load) for load in loads)
            for rank, load in enumerate(loads):
                at = rank * self.share
                for parameter in load:
                    self.start[parameter] = at
                    at += parameter.numel()

    @property
    def size(self) -> int:
        """Numbers in flat, padding included."""
        return self.ranks * self.share

    def views(self, flat: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        """flat[N·s] → each parameter's part of it, in the parameter's shape, on the same memory."""
        return {p: flat[start : start + p.numel()].view(p.shape) for p, start in self.start.items()}

    def write(
        self, values: Mapping[nn.Parameter, torch.Tensor | None], flat: torch.Tensor
    ) -> torch.Tensor:
        """Copy values of parameters into flat[N·s]; what is missing, and the padding, is zero."""
        if self.numel < self.size:
            flat.zero_()
        for parameter, view in self.views(flat).items():
            value = values.get(parameter)
            if value is None:
                view.zero_()
            else:
                view.copy_(value)
        return flat

    def of_rank(self, flat: torch.Tensor, rank: int) -> torch.Tensor:
        """flat[N·s] → the share[s] of one rank, on the same memory."""
        return flat[rank * self.share : (rank + 1) * self.share]

    def pieces(self, rank: int) -> list[Piece]:
        """What one rank's share holds, in order; padding belongs to no piece."""
        begin, end = rank * self.share, (rank + 1) * self.share
        found = []
        for parameter, start in sorted(self.start.items(), key=lambda item: item[1]):
            low, high = max(begin, start), min(end, start + parameter.numel())
            if low < high:
                of, at = slice(low - start, high - start), slice(low - begin, high - begin)
                found.append(Piece(parameter, of, at))
        return found


class Shard(NamedTuple):
    """Where the numbers `of` a parameter (flattened) are: `local` [at] is what this rank updates.

    `optimizer.state[local]` holds tensors of local's shape for them, and scalars that all share.
    """

    name: str
    parameter: nn.Parameter
    of: slice
    local: nn.Parameter
    at: slice


def runs(pieces: Sequence[Piece], kind: Callable[[nn.Parameter], int]) -> list[list[Piece]]:
    """Pieces that follow each other without a gap and are of one kind, together."""
    found: list[list[Piece]] = []
    for piece in pieces:
        last = found[-1][-1] if found else None
        if (
            last
            and last.at.stop == piece.at.start
            and kind(last.parameter) == kind(piece.parameter)
        ):
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def make_units(
    parameters: Sequence[nn.Parameter],
    ranks: int,
    most: int,
    partition: str = "flat",
    kind: Callable[[nn.Parameter], int] = lambda parameter: 0,
) -> list[Unit]:
    """Units of up to `most` bytes, in the given order; one dtype and one `requires_grad` in each.

    In a unit, parameters of one kind stand together. A parameter without numbers is in none.
    """
    if most < 1:
        raise ValueError(f"bucket_bytes={most}: a bucket holds 1 byte or more")
    lists: list[list[nn.Parameter]] = []
    open_list: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.numel():
            key = parameter.dtype, parameter.requires_grad
            chosen = open_list.get(key)
            if chosen is None or sum(p.nbytes for p in chosen) + parameter.nbytes > most:
                chosen = open_list[key] = []
                lists.append(chosen)
            chosen.append(parameter)
    return [Unit(sorted(chosen, key=kind), ranks, partition) for chosen in lists]


def check_groups(
    names: Mapping[nn.Parameter, str], param_groups: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Groups as torch takes them, copied: all that is trained, each parameter once."""
    trained = {p: name for p, name in names.items() if p.requires_grad}
    if not any(p.numel() for p in trained):
        raise ValueError("module: no parameter requires a gradient, so nothing is to be trained")
    groups = [{**g, "params": [*g["params"]]} for g in param_groups or [{"params": trained}]]
    given = [p for g in groups for p in g["params"]]
    for parameter in given:
        if parameter not in names:
            raise ValueError("param_groups: a parameter is not one of the module's")
        if sum(parameter is other for other in given) > 1:
            raise ValueError(f"param_groups: {names[parameter]} is in two groups")
    for parameter, name in trained.items():
        if not any(parameter is other for other in given):
            raise ValueError(f"param_groups: {name} is in none; freeze it or put it in one")
    return groups


def check_optimizer(optimizer_class: type[torch.optim.Optimizer], partition: str) -> None:
    """Raise ValueError for an optimizer that cannot work on shares."""
    name = optimizer_class.__name__
    if partition not in PARTITIONS:
        raise ValueError(f"partition={partition!r}: choose one of {', '.join(PARTITIONS)}")
    if issubclass(optimizer_class, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise ValueError(f"optimizer_class={name}: it needs all parameters at once, or sparse ones")
    if partition == "flat" and not any(
        issubclass(optimizer_class, getattr(torch.optim, known)) for known in ELEMENTWISE
    ):
        raise ValueError(
            f"optimizer_class={name} may look at a whole parameter, and 'flat' cuts through them: "
            "give partition='parameter'"
        )


def main(ranks: int = 3) -> None:
    """Cut three parameters into shares, both ways, and say what each rank owns."""
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: there is 1 rank or more")
    named = {"W": nn.Parameter(torch.ones(4, 5)), "b": nn.Parameter(torch.ones(5))}
    named["scale"] = nn.Parameter(torch.ones(1))
    names = {parameter: name for name, parameter in named.items()}
    for partition in PARTITIONS:
        unit = Unit(list(names), ranks, partition)
        print(f"{partition}: {unit.numel} numbers, shares of {unit.share}")
        owned = 0
        for rank in range(ranks):
            pieces = unit.pieces(rank)
            held = [f"{names[p]}[{of.start}:{of.stop}]" for p, of, _ in pieces]
            print(f"  rank {rank}:", ", ".join(held) or "padding")
            owned += sum(of.stop - of.start for _, of, _ in pieces)
            assert all(a.at.stop <= b.at.start for a, b in pairwise(pieces))
        assert owned == unit.numel, "every number has one owner"


if __name__ == "__main__":
    run_script(main)
