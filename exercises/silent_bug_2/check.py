"""Replicas that do not start equal, or whose buffers part: what one rank saves is another model."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from distributed.ring_group import RingGroup
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.silent import LR, Rows, State, check_replicas, copy_of, difference, rows

HINTS = [
    "Compare `model.state_dict()` of two ranks before the first step, and after the last. It has "
    "more in it than `model.parameters()`.",
    "BatchNorm's running mean and variance are buffers. No gradient moves them, so averaging "
    "gradients does not keep them equal: each rank's follow its own rows.",
    "Broadcast parameters and buffers from rank 0 before the first step, and the buffers again "
    "after every step (or before it, and once at the end).",
]
STEPS = 3


class Case(NamedTuple):
    """How many rows a rank has, the learning rate, what rows are drawn from, and weights."""

    rows: int = 4
    lr: float = LR
    seed: tuple[int, ...] = ()
    model: int = 0

    def batches(self, rank: int, steps: int) -> list[Rows]:
        return [rows(self.rows, rank, t, *self.seed) for t in range(steps)]


def drawn(draw: Draw) -> Case:
    return Case(draw(5, 9), draw(11, 30) / 100, (draw(0, 10**6),), draw(1, 10**6))


FIRST = Case()


def make_model(seed: int, case: Case = FIRST) -> nn.Module:
    """x[b, 6] → logits y[b, 3] with a BatchNorm; weights and buffers differ by seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 10 * case.model)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        norm = model[1]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.running_mean is not None
        norm.running_mean.normal_()  # as if it went on from a run of its own
        return model.double()


def run(group: Group, answer: Callable[..., Any], case: Case) -> list[State]:
    """This rank's model without a step, and after some."""
    rings, make = RingGroup(group), partial(make_model, case=case)
    models = [answer(rings, make, case.batches(group.rank, steps), case.lr) for steps in (0, STEPS)]
    return [copy_of(model) for model in models if isinstance(model, nn.Module)]


def reference(case: Case, ranks: int, steps: int) -> list[nn.Module]:
    """Replicas with rank 0's weights, whose gradients are averaged; buffers are each one's own."""
    models = [make_model(0, case) for _ in range(ranks)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=case.lr) for model in models]
    for t in range(steps):
        for rank, model in enumerate(models):
            model.zero_grad()
            x, labels = case.batches(rank, steps)[t]
            nn.functional.cross_entropy(model(x), labels).backward()
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([p.grad for p in same if p.grad is not None]).mean(0)
            for p in same:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    check_case(train, FIRST, 2)
    check_case(train, drawn(draw), 3)
    return "Right: replicas are equal, weights and buffers, at the start and after training."


def check_case(train: Callable[..., Any], case: Case, ranks: int) -> None:
    results = on_ranks(run, train, case, ranks=ranks)
    if min(map(len, results)) < 2:
        raise Wrong("Return the trained model on every rank")
    for i, steps in enumerate((0, STEPS)):
        when = f"After {steps} steps with lr = {case.lr:g}" if steps else "Before the first step"
        states = [result[i] for result in results]
        models = reference(case, ranks, steps)
        names = [name for name, _ in models[0].named_parameters()]
        right = copy_of(models[0])
        weights = [{name: state[name] for name in names} for state in states]
        check_replicas(weights, when, "So ranks train different models")
        meaning = "So each rank would save and evaluate a different model"
        check_replicas(states, when, meaning)
        expected = {name: right[name] for name in names}
        if said := difference(weights[0], expected, "in training from rank 0's weights"):
            raise Wrong(f"Replicas are equal, but {when.lower()}, on all ranks, {said}")
        check_buffers(states[0], models, when)


def check_buffers(state: State, models: list[nn.Module], when: str) -> None:
    """The running statistics must have seen the rows: of rank 0, or of all ranks."""
    each = [copy_of(model) for model in models]
    for name, _ in models[0].named_buffers():
        if name.endswith("num_batches_tracked"):
            continue
        seen = torch.stack([of_rank[name] for of_rank in each])
        slack = 0.5 * (seen.amax(0) - seen.amin(0)) + 1e-9
        if ((state[name] < seen.amin(0) - slack) | (state[name] > seen.amax(0) + slack)).any():
            place = int((state[name] - seen.mean(0)).abs().argmax())
            raise Wrong(
                f"Replicas are equal, but {when.lower()} {name}[{place}] is "
                f"{state[name][place]:.4g}, and no rank's rows lead there: they lead to "
                f"{', '.join(f'{value:.4g}' for value in seen[:, place].tolist())}. Equal buffers "
                "must still have learned from rows"
            )
