"""Shares of a batch differ in size, and rows of small shares count more."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.silent import (
    LR,
    Rows,
    State,
    check_replicas,
    copy_of,
    counts,
    difference,
    flat,
    gradient,
    network,
    rows,
    times,
)

HINTS = [
    "Write down what a single row's gradient is multiplied with on its way into the step, on a "
    "rank with 2 rows and on one with 6.",
    "Each rank divides by its own number of rows, then the average divides by N. One device "
    "divides once, by all rows.",
    "Count the rows of all ranks with an all-reduce. Sum the losses of a rank's rows, divide by "
    "that count, and sum the gradients over the ranks.",
]
STEPS = 3


class Case(NamedTuple):
    """How many rows each rank has, the learning rate, and what the rows are drawn from."""

    sizes: list[int]
    lr: float = LR
    seed: tuple[int, ...] = ()

    def rows(self, rank: int, t: int) -> Rows:
        return rows(self.sizes[rank], rank, t, *self.seed)


def drawn(draw: Draw) -> Case:
    sizes = [draw(1, 6) for _ in range(3)]
    sizes[draw(0, 2)] = draw(8, 12)
    return Case(sizes, draw(2, 30) / 100, (draw(0, 10**6),))


def run(group: Group, answer: Callable[..., Any], case: Case) -> list[State]:
    """Weights after one step, and after several."""
    states = []
    for steps in (1, STEPS):
        model = network()
        batches = [case.rows(group.rank, t) for t in range(steps)]
        answer(RingGroup(group), model, batches, case.lr)
        states.append(copy_of(model))
    return states


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    check_case(train, Case([2, 6]))
    check_case(train, drawn(draw))
    return "Right: every row counts the same, whatever rank it is on."


def check_case(train: Callable[..., Any], case: Case) -> None:
    sizes, ranks, start = case.sizes, len(case.sizes), copy_of(network())
    results = on_ranks(run, train, case, ranks=ranks)
    weights = dict(start)
    for t in range(STEPS):
        g = sum(gradient(weights, case.rows(r, t)) for r in range(ranks))
        weights = moved(weights, torch.as_tensor(g) / sum(sizes), case.lr)
        if t == 0:
            first = weights
    g_of = [gradient(start, case.rows(r, 0)) for r in range(ranks)]
    when = f"on {ranks} ranks with lr = {case.lr:g}, on rank"
    for rank, (state, _) in enumerate(results):
        if said := difference(state, first, "on one device"):
            found = counts((flat(start) - flat(state)) / case.lr, g_of)
            explain(found, sizes, f"After one step {when} {rank}, {said}")
    check_replicas([last for _, last in results], f"After {STEPS} steps")
    if said := difference(results[0][1], weights, "on one device"):
        raise Wrong(f"The first step is right. After {STEPS} steps {when} 0, {said}")


def moved(weights: State, g: torch.Tensor, lr: float = LR) -> State:
    """Weights after a step of SGD by g[Ψ]."""
    parts = g.split([w.numel() for w in weights.values()])
    return {
        name: w - lr * part.view(w.shape)
        for (name, w), part in zip(weights.items(), parts, strict=True)
    }


def explain(found: list[float] | None, sizes: list[int], said: str) -> None:
    """Raise `Wrong` with how often each rank's rows count."""
    if found is None:
        raise Wrong(f"{said}. No weighting of the rows' gradients gives this step")
    often = [c * sum(sizes) for c in found]
    each = ", ".join(
        f"a row of rank {r} (which has {n}) counts {times(c)}"
        for r, (n, c) in enumerate(zip(sizes, often, strict=True))
    )
    alike = max(often) - min(often) < 1e-6
    rule = (
        "All rows count alike, but the step is not that of their mean loss"
        if alike
        else "Every row of a batch must count once"
    )
    raise Wrong(f"{said}. {rule}. Here {each}")
