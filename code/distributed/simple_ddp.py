"""DDP by hand: the same weights at the start, and averaged gradients in every step.

    dW[...]{partial over ranks} → all_reduce(avg) → dW[...], for every parameter

All ranks start from rank 0's weights and buffers. After each backward pass they average every
gradient, so their optimizers take the same steps. It works for any module and any optimizer.
"""

from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace


def average_gradients(module: nn.Module, group: Group) -> None:
    """dW[...]{partial over ranks} → dW[...], the mean over the ranks, for every parameter.

    It is computed in the gradient's dtype; see `Group.all_reduce`.
    """
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="avg")


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train by hand on several ranks, and check that the replicas stay equal to the last bit."""
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
    print(f"replicas equal to the last bit; {share:.0%} of a step is communication")


def train_by_hand(group: Group, batch: int, steps: int) -> tuple[list[float], dict, Trace]:
    """One rank: the mean loss of each whole batch, the final weights, and what took how long."""
    from distributed.workbench.training import make_network, train_with_sgd

    module = make_network(seed=group.rank, norm=True)  # different weights on each rank
    module.to(group.device)
    broadcast_module(module, group)
    losses, trace = train_with_sgd(group, module, batch, steps, average_gradients)
    return losses, {name: t.cpu() for name, t in module.state_dict().items()}, trace


if __name__ == "__main__":
    run_script(main)
