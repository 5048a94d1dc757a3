"""Shares of a batch differ in size, and rows of small shares count more."""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from playground.exercises.check import Wrong, on_ranks
from playground.exercises.silent import (
    LR,
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
SIZES = [[2, 6], [1, 3, 8]]  # rows of each rank
STEPS = 3


def run(group: Group, answer: Callable[..., Any], sizes: list[int]) -> list[State]:
    """Weights after one step, and after several."""
    states = []
    for steps in (1, STEPS):
        model = network()
        batches = [rows(sizes[group.rank], group.rank, t) for t in range(steps)]
        answer(RingGroup(group), model, batches, LR)
        states.append(copy_of(model))
    return states


def check(train: Callable[..., Any]) -> str:
    start = copy_of(network())
    for sizes in SIZES:
        ranks, results = len(sizes), on_ranks(run, train, sizes, ranks=len(sizes))
        weights = dict(start)
        for t in range(STEPS):
            g = sum(gradient(weights, rows(n, r, t)) for r, n in enumerate(sizes))
            weights = moved(weights, torch.as_tensor(g) / sum(sizes))
            if t == 0:
                first = weights
        g_of = [gradient(start, rows(n, r, 0)) for r, n in enumerate(sizes)]
        for rank, (state, _) in enumerate(results):
            if said := difference(state, first, "on one device"):
                found = counts((flat(start) - flat(state)) / LR, g_of)
                explain(found, sizes, f"After one step on {ranks} ranks, on rank {rank}, {said}")
        check_replicas([last for _, last in results], f"After {STEPS} steps")
        if said := difference(results[0][1], weights, "on one device"):
            raise Wrong(f"The first step is right. After {STEPS} steps on rank 0, {said}")
    return "Right: every row counts the same, whatever rank it is on."


def moved(weights: State, g: torch.Tensor) -> State:
    """Weights after a step of SGD by g[Ψ]."""
    parts = g.split([w.numel() for w in weights.values()])
    return {
        name: w - LR * part.view(w.shape)
        for (name, w), part in zip(weights.items(), parts, strict=True)
    }


def explain(found: list[float] | None, sizes: list[int], said: str) -> None:
    """Raise `Wrong` with how often each rank's rows count."""
    if found is None:
        raise Wrong(f"{said}. No weighting of the rows' gradients gives this step")
    often = [c * sum(sizes) for c in found]
    each = ", ".join(
        f"a row of rank {r} (which has {n}) {times(c)}"
        for r, (n, c) in enumerate(zip(sizes, often, strict=True))
    )
    alike = max(often) - min(often) < 1e-6
    rule = (
        "All rows count alike, but the step is not that of their mean loss"
        if alike
        else "Every row of a batch must count once"
    )
    raise Wrong(f"{said}. {rule}. Here counts {each}")
