"""Common parts of the exercises on silent bugs: a network, rows, and which rows a step has used.

A step of SGD changes the weights by −lr · Σ c_row g_row. The gradients g of each rank's rows are
known, so the equation can be solved for the counts c: how often each row contributed to the step.
"""

from collections.abc import Sequence

import torch
from torch import nn

from playground.exercises.check import Wrong
from playground.exercises.suspects import normal

LR = 0.1
Rows = tuple[torch.Tensor, torch.Tensor]  # x[b, 6], labels[b]
State = dict[str, torch.Tensor]


def network(seed: int = 0) -> nn.Module:
    """x[b, 6] → logits y[b, 3], in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def rows(count: int, *seed: int) -> Rows:
    """Rows to learn from: the label is the largest of the first three numbers."""
    x = normal(count, 6, seed=(count, *seed))
    return x, x[:, :3].argmax(1)


def copy_of(model: nn.Module) -> State:
    """Weights and buffers as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def flat(state: State) -> torch.Tensor:
    return torch.cat([tensor.double().view(-1) for tensor in state.values()])


def gradient(state: State, data: Rows) -> torch.Tensor:
    """g[Ψ] = Σ over the rows of the gradient of each row's loss, at these weights."""
    model = network()
    model.load_state_dict(state)
    nn.functional.cross_entropy(model(data[0]), data[1], reduction="sum").backward()
    return torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])


def counts(moved: torch.Tensor, gradients: Sequence[torch.Tensor]) -> list[float] | None:
    """c with moved[Ψ] = Σ c_i gradients[i]; None if there is no such c."""
    a = torch.stack(list(gradients), 1)
    found = torch.linalg.lstsq(a, moved[:, None]).solution[:, 0]
    if (a @ found - moved).norm() > 1e-6 * max(float(moved.norm()), 1e-12):
        return None
    return found.tolist()


def largest_difference(found: State, expected: State) -> tuple[str, float, float, float]:
    """The element that differs most: its name, both values, and the difference."""
    worst = ("", 0.0, 0.0, 0.0)
    for name, right in expected.items():
        off = (found[name].double() - right.double()).abs().nan_to_num(nan=torch.inf)
        if off.numel() and off.max() > worst[3]:
            at = int(off.argmax())
            place = ", ".join(str(int(i)) for i in torch.unravel_index(off.argmax(), off.shape))
            where = f"{name}[{place}]" if place else name
            a, b = found[name].view(-1)[at].item(), right.view(-1)[at].item()
            worst = (where, a, b, float(off.max()))
    return worst


def difference(found: State, expected: State, what: str, tolerance: float = 1e-9) -> str:
    """That difference in words; empty if it is within the tolerance."""
    name, a, b, off = largest_difference(found, expected)
    if not off > tolerance * max(1.0, abs(b)):
        return ""
    return f"{name} is {a:.6g}, {what} {b:.6g}: a difference of {off:.2g}"


def check_replicas(states: Sequence[State], when: str, meaning: str = "") -> None:
    """Raise `Wrong` if a rank's weights or buffers differ from rank 0's."""
    for rank, state in enumerate(states[1:], start=1):
        if said := difference(state, states[0], "on rank 0"):
            raise Wrong(
                f"Replicas must be equal. {when}, on rank {rank}, {said}. {meaning}".strip()
            )


def times(number: float) -> str:
    """How often something counts, in words."""
    words = {0.0: "not at all", 1.0: "once"}
    return words.get(round(number, 6), f"{number:.3g} times")


def name_of(at: int) -> str:
    """Name of the weight at this index of flat[Ψ]."""
    for name, tensor in network().state_dict().items():
        if at < tensor.numel():
            place = torch.unravel_index(torch.tensor(at), tensor.shape)
            return f"{name}[{', '.join(str(int(i)) for i in place)}]"
        at -= tensor.numel()
    raise ValueError(f"at={at}: the network has no such weight")
