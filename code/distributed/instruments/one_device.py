"""One device's training run, which the ranks of ZeRO's lessons have to reproduce."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from distributed.model_states import Recipe, per_rank
from distributed.workbench.data import batches
from distributed.workbench.memory_meter import nbytes
from distributed.workbench.training import Alone, make_network, train


class OneDevice:
    """The digits' network in float64, trained with AdamW on one device.

    model   the network with its final weights
    losses  of the whole batches, one per step
    psi     number of parameters
    """

    def __init__(self, batch: int, steps: int, depth: int = 1):
        alone = Alone(make_network(depth=depth).double(), torch.optim.AdamW, lr=0.01)
        self.model, self.psi = alone.model, sum(p.numel() for p in alone.model.parameters())
        self.losses = train(alone.model, alone.step, batches(1797, batch, steps), examples=batch)

    def check(self, losses: list[float], weights: Sequence[torch.Tensor] | None = None) -> None:
        """AssertionError unless losses and final weights are one device's. Prints the last losses.

        Losses agree to 1e-6, because ranks average them in float32, and weights to 1e-8. `weights`
        are in the model's order.
        """
        print(f"loss {losses[-1]:.6f}, on one device {self.losses[-1]:.6f}")
        torch.testing.assert_close(losses, self.losses, rtol=1e-6, atol=0)
        if weights is not None:
            expected = [p.detach() for p in self.model.parameters()]
            torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-10)

    def check_bytes(self, kept: Mapping[str, int], ranks: int, stage: int, padding: int) -> None:
        """AssertionError unless a rank keeps what the stage's formula says, and up to `padding`.

        The formula is `model_states.per_rank` for float64 and Adam. Prints both, in bytes.
        """
        formula = per_rank(self.psi, ranks, stage, Recipe(8, 8, 0, 2 * 8))
        for what, size in kept.items():
            print(f"{what}: {size:,} bytes on a rank; the formula says {formula[what]:,.0f}")
            assert 0 <= size - formula[what] <= padding


def bytes_kept(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of model states that a rank keeps, by purpose.

    Shards that the optimizer updates have gradients, too, even if they aren't in the module.
    """
    updated = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in (*module.parameters(), *updated) if p.grad is not None]
    states = [t for state in optimizer.state.values() for t in state.values()]
    return {
        "parameters": nbytes(module.parameters()),
        "gradients": nbytes(gradients),
        "optimizer states": nbytes(states),
    }
