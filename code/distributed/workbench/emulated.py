"""Emulated network: its layers wait as long as a device of a given speed would compute.

If ranks share a few cores, computation and messages slow each other down, so a measurement can't
show what overlap would save with one device per rank. Waiting doesn't use a core. So measurements
with this network have real messages, and computation times that you choose.
"""

import time
from typing import Any

import torch
from torch import nn

from distributed.runtime.script import run_script


class _Wait(torch.autograd.Function):
    """Passes x on after `seconds`, and its gradient after twice as long."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        ctx.save_for_backward(weight)
        time.sleep(seconds)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        (weight,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(weight), None


class EmulatedLayer(nn.Module):
    """A weight[side, side]; forward takes `seconds`, backward twice as long."""

    def __init__(self, side: int, seconds: float):
        super().__init__()
        if side < 1 or not seconds >= 0:
            raise ValueError(f"side={side}, seconds={seconds}: 1 or more, 0 or more")
        self.weight = nn.Parameter(torch.zeros(side, side))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Wait.apply(x, self.weight, self.seconds)


def emulated_network(layers: int, side: int, step: float) -> nn.Sequential:
    """A network whose step takes `step` seconds on one rank: a third of it forward."""
    return nn.Sequential(*(EmulatedLayer(side, step / 3 / layers) for _ in range(layers)))


def train_step(model: nn.Module) -> None:
    """Forward and backward."""
    model(torch.zeros(1, requires_grad=True)).sum().backward()


def main(layers: int = 8, step: float = 0.06) -> None:
    """Time of a step, next to the time that was requested."""
    model = emulated_network(layers, 30, step)
    train_step(model)
    begun = time.perf_counter()
    train_step(model)
    taken = time.perf_counter() - begun
    print(f"asked for {step * 1e3:.0f} ms, took {taken * 1e3:.0f} ms")
    assert taken >= step
    assert all(p.grad.unique().tolist() == [2.0] for p in model.parameters() if p.grad is not None)


if __name__ == "__main__":
    run_script(main)
