"""Accumulation: what belongs into a step, and what was left from the one before."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.all_reduce import ring_sent
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
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
    name_of,
    network,
    rows,
    times,
)

HINTS = [
    "Follow `parameter.grad` through two steps by hand. When is it empty?",
    "backward() adds to `parameter.grad`. That is wanted from micro-batch to micro-batch, and "
    "unwanted from step to step.",
    "For each step: empty the gradients, all backward passes, one average over the ranks, one "
    "step. Each loss is divided by the number of micro-batches.",
]
STEPS = 2


class Case(NamedTuple):
    """Micro-batches of a step, rows in each, the learning rate, and what rows are drawn from."""

    micro: int = 3
    rows: int = 2
    lr: float = LR
    seed: tuple[int, ...] = ()

    def micro_batches(self, rank: int, t: int) -> list[Rows]:
        return [rows(self.rows, rank, t, i, *self.seed) for i in range(self.micro)]


def drawn(draw: Draw) -> Case:
    return Case((2, 4, 5)[draw(0, 2)], draw(1, 4), draw(2, 30) / 100, (draw(0, 10**6),))


def run(group: Group, answer: Callable[..., Any], case: Case) -> tuple[list[State], int]:
    """Weights after each number of steps; elements that the last run sent in a step."""
    states, rings = [], RingGroup(group)
    for steps in range(1, STEPS + 1):
        model = network()
        rings.trace = trace = Trace(group.rank)
        answer(rings, model, [case.micro_batches(group.rank, t) for t in range(steps)], case.lr)
        states.append(copy_of(model))
    return states, trace.sent // 8 // STEPS


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    check_case(train, Case(), 2)
    check_case(train, drawn(draw), 3)
    return "Right: each micro-batch is in one step, once, and a step sends gradients once."


def check_case(train: Callable[..., Any], case: Case, ranks: int) -> None:
    sizes = [w.numel() for w in copy_of(network()).values()]
    results = on_ranks(run, train, case, ranks=ranks)
    for t in range(STEPS):
        for rank, (states, _) in enumerate(results):
            if not rank or difference(states[t], results[0][0][t], "on rank 0"):
                check_step(case, t, rank, ranks, [copy_of(network()), *states])
        check_replicas([states[t] for states, _ in results], f"After {t + 1} steps")
    for rank, (_, sent) in enumerate(results):
        needed = sum(ring_sent(n, rank, ranks).elements for n in sizes)
        if sent > 1.5 * needed:
            raise Wrong(
                f"The weights are right, but rank {rank} of {ranks} sends {sent} elements in a "
                f"step, {sent / needed:.2g} times what is needed: {needed} for one average of "
                f"{sum(sizes)} gradients, however many micro-batches they are of"
            )


def check_step(case: Case, t: int, rank: int, ranks: int, states: list[State]) -> None:
    """Raise `Wrong` unless step t was made of each micro-batch of it once, and of no other."""
    keys = [(s, r, i) for s in range(t + 1) for r in range(ranks) for i in range(case.micro)]
    basis = [gradient(states[s], case.micro_batches(r, s)[i]) for s, r, i in keys]
    moved = (flat(states[t]) - flat(states[t + 1])) / case.lr
    whole = ranks * case.micro * case.rows
    here = f"{ranks} ranks, {case.micro} micro-batches, lr = {case.lr:g}, step {t}, rank {rank}: "
    found = counts(moved, basis)
    if found is None:
        raise Wrong(f"{here}no weighting of the micro-batches' gradients gives this step")
    often = {key: c * whole for key, c in zip(keys, found, strict=True)}
    now = {key: c for key, c in often.items() if key[0] == t}
    for key, c in often.items():
        s, r, i = key
        right = 1.0 if s == t else 0.0
        if abs(c - right) > 1e-5:
            alike = max(now.values()) - min(now.values()) < 1e-5
            what = (
                "all micro-batches count"
                if s == t and alike
                else (f"micro-batch {i} of rank {r} in step {s} counts")
            )
            right_move = torch.stack(basis[-len(now) :]).sum(0) / whole
            at = int((moved - right_move).abs().argmax())
            should = (
                "and belongs to a step that is over"
                if s < t
                else "and should count once, as on one device"
            )
            moves, should_move = (-case.lr * float(move[at]) for move in (moved, right_move))
            raise Wrong(
                f"{here}{what} {times(c)}, {should}. So {name_of(at)} moves by "
                f"{moves + 0.0:.4g}, not by {should_move:.4g}"
            )
