"""The networks of the fuzzer's draws: blocks of float64, and parameters of other dtypes.

A parameter of few bits is rounded otherwise in every order of sums. So it stands in a term of its
own: its gradient depends on the input alone, and the bound on its error is a formula.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tests.fuzz.draws import Draw, Part
from tests.fuzz.layers import LAYERS
from tests.fuzz.optimizers import OPTIMIZERS
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

FEATURES, ROWS = 3, 4


class Named(NamedTuple):
    x: torch.Tensor
    total: torch.Tensor


@dataclass
class Held:
    x: torch.Tensor
    total: torch.Tensor


def pack(kind: str, x: torch.Tensor, total: torch.Tensor, weight: torch.Tensor) -> Any:
    """What a block returns."""
    if kind == "view":
        return x, total, weight.view(-1)
    if kind == "dict":
        return {"x": x, "total": total}
    made = {"named": Named, "dataclass": Held}.get(kind)
    return made(x, total) if made else (x, total)


def unpack(output: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    if isinstance(output, tuple):
        return output[0], output[1], [*output[2:]]
    found = output if isinstance(output, dict) else vars(output)
    return found["x"], found["total"], []


class Aside(nn.Module):
    """total + Σ_n w[n] · mean |raw|[n]: gradients of one sign, whatever the weights are."""

    def __init__(self, low: str):
        super().__init__()
        self.autocast = low == "autocast"
        dtype = torch.float32 if self.autocast else getattr(torch, low)
        self.weight = nn.Parameter(torch.rand(FEATURES).to(dtype))

    def forward(self, total: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        coefficients = (raw.abs().mean(0) + 0.5).to(self.weight.dtype)
        with torch.autocast("cpu", torch.bfloat16, self.autocast):
            if self.autocast:
                return total + F.linear(coefficients[None], self.weight[None]).double().sum()
            return total + (self.weight * coefficients).double().sum()


class Block(nn.Module):
    def __init__(self, part: Part, width: int, output: str):
        super().__init__()
        self.output = output
        self.into, self.out = nn.Linear(width, part.hidden), nn.Linear(part.hidden, width)
        self.extra = nn.Parameter(torch.rand(width))
        self.double()
        self.aside = Aside(part.low) if part.low else None
        self.layer = LAYERS[part.layer].make(width) if part.layer else None
        if part.buffers:
            self.register_buffer("mean", torch.rand(width, dtype=torch.float64))
            self.register_buffer("calls", torch.tensor(0))
        self.has_buffers = part.buffers

    def forward(
        self, x: torch.Tensor, total: torch.Tensor, raw: torch.Tensor, extra: bool, aside: bool
    ) -> Any:
        if self.has_buffers:
            x = x - self.mean
            if self.training:
                with torch.no_grad():
                    self.mean.mul_(0.5).add_(x.mean(0))
                    self.calls.add_(1)
        if self.layer is not None:
            x = x + self.layer(x, raw)
        x = x + self.out(self.into(x).tanh())
        if extra:
            x = x * self.extra
        if aside and self.aside is not None:
            total = self.aside(total, raw)
        return pack(self.output, x, total, self.extra)


class Network(nn.Module):
    """raw[b, FEATURES] → y[b, 2], total: blocks between two layers of the root.

    `without` says what one forward pass leaves out.
    """

    def __init__(self, draw: Draw):
        super().__init__()
        torch.manual_seed(draw.number)
        self.order, width = draw.order, draw.width
        self.again = [part.again for part in draw.parts]
        self.first, self.last = nn.Linear(FEATURES, width).double(), nn.Linear(width, 2).double()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        takes_empty = OPTIMIZERS[draw.optimizer].takes_empty
        self.nothing = nn.Parameter(torch.ones(0, dtype=torch.float64), takes_empty)
        self.tied = nn.ParameterList()
        self.blocks = nn.ModuleList(Block(part, width, draw.output) for part in draw.parts)
        for part, block in zip(draw.parts, self.blocks, strict=True):
            if part.frozen:
                (block if part.frozen == "all" else block.into.bias).requires_grad_(False)
            if part.tied == "root":
                self.tied.append(block.into.weight)
            elif part.tied == "block" and part.hidden == draw.parts[0].hidden:
                block.into.weight = self.blocks[0].into.weight

    def forward(self, raw: torch.Tensor, without: tuple[str, ...] = ()) -> Any:
        x, total = self.first(raw), self.nothing.sum()
        views: list[torch.Tensor] = []
        for i in self.order:
            if f"block {i}" in without:
                continue
            inputs = x, total, raw, f"extra {i}" not in without, f"aside {i}" not in without
            if self.again[i] and self.training and f"again {i}" not in without:
                kind = self.again[i] == "reentrant"
                output = checkpoint(self.blocks[i], *inputs, use_reentrant=kind)
            else:
                output = self.blocks[i](*inputs)
            x, total, shown = unpack(output)
            views += shown
            if f"behind {i}" in without:
                x = x.detach()
        for weight in self.tied:
            total = total + weight.square().sum()
        for view in views:
            total = total + view.square().sum()
        return (x if "last" in without else self.last(x) * self.scale), total


class Asides(nn.Module):
    """A network whose gradients do not depend on its weights, for parameters that are cast."""

    def __init__(self, draw: Draw):
        super().__init__()
        torch.manual_seed(draw.number)
        self.order, self.first = draw.order, Aside("float32")
        self.blocks = nn.ModuleList(Aside("float32") for _ in draw.parts)
        for part, block in zip(draw.parts, self.blocks, strict=True):
            block.requires_grad_(part.frozen != "all")

    def forward(self, raw: torch.Tensor, without: tuple[str, ...] = ()) -> Any:
        total = self.first(raw.new_zeros(()), raw)
        for i in self.order:
            if f"block {i}" not in without:
                total = self.blocks[i](total, raw)
        return raw[:, :2], total


def make_network(draw: Draw) -> Any:
    return Asides(draw) if draw.param_dtype else Network(draw)


def inputs(draw: Draw, segment: int, step: int, number: int, rank: int) -> torch.Tensor:
    """What one rank computes with in one pass."""
    seed = 1 + rank + 10 * (number + 10 * (step + 10 * (segment + 10 * draw.number)))
    made = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=made)


def wide(x: torch.Tensor) -> torch.Tensor:
    """With all the digits that there are, to compare."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def loss_of(output: Any) -> torch.Tensor:
    y, total = output
    return y.square().sum() / ROWS + total
