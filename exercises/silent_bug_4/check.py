"""The order of waiting, clipping and stepping: only a mean that has come can be clipped."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from playground.exercises.silent_bug_1.check import moved

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.queue import Handle
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.silent import (
    LR,
    Rows,
    State,
    check_replicas,
    copy_of,
    difference,
    flat,
    gradient,
    network,
    rows,
)
from playground.exercises.suspects import recognise

HINTS = [
    "What is in `parameter.grad` at each line: a rank's own gradient, or the mean?",
    "With `async_op=True` a collective may be anywhere between not begun and done until "
    "`handle.wait()` returns. Nothing may read or write its array before.",
    "The order is: backward, all-reduce, wait for all handles, clip, step.",
]
STEPS = 3
ALONE = ("on one device", 1e-6)  # others may clip with another small number beside the norm


class Late(RingGroup):
    """An asynchronous all-reduce does nothing before it is waited for, which it may do anywhere."""

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        if not async_op:
            return super().all_reduce(x, op)
        return Handle(x, lambda: super(Late, self).all_reduce(x, op), lambda: None)


class Case(NamedTuple):
    """Rows of each rank, the learning rate, what rows are drawn from; the norm in mean norms."""

    rows: int = 4
    lr: float = LR
    seed: tuple[int, ...] = ()
    clips: float | None = None  # None: a norm of 0.1

    def share(self, rank: int, t: int) -> Rows:
        """Rows of a rank: the later the rank, the larger their gradients."""
        x, labels = rows(self.rows, rank, t, *self.seed)
        return x * (1 + 4 * rank), labels


def drawn(draw: Draw) -> Case:
    return Case(draw(2, 8), draw(2, 30) / 100, (draw(0, 10**6),), draw(5, 60) / 100)


def run(group: Group, answer: Callable[..., Any], case: Case, norms: list[float]) -> list[State]:
    """Weights after a step for each norm, and after several with the first."""
    states = []
    for max_norm, steps in [(norms[0], 1), (norms[1], 1), (norms[0], STEPS)]:
        model = network()
        batches = [case.share(group.rank, t) for t in range(steps)]
        answer(Late(group), model, batches, case.lr, max_norm)
        states.append(copy_of(model))
    return states


def clipped(g: torch.Tensor, max_norm: float) -> torch.Tensor:
    return g * min(1.0, max_norm / (float(g.norm()) + 1e-6))


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    check_case(train, Case(), 2)
    check_case(train, drawn(draw), 3)
    return "Right: the mean is there before it is clipped, and clipped before the step."


def check_case(train: Callable[..., Any], case: Case, ranks: int) -> None:
    start, lr = copy_of(network()), case.lr
    own = [gradient(start, case.share(rank, 0)) / case.rows for rank in range(ranks)]
    mean = sum(own[1:], own[0]) / ranks
    clips = 0.1 if case.clips is None else case.clips * float(mean.norm())
    norms = [clips, 1.3 * float(mean.norm())]  # one that clips, one that does not
    results = on_ranks(run, train, case, norms, ranks=ranks)
    for i, max_norm in enumerate(norms):
        states = [result[i] for result in results]
        steps = [(flat(start) - flat(state)) / lr for state in states]
        causes = [cause(start, step, own, r, max_norm) for r, step in enumerate(steps)]
        when = f"After one step on {ranks} ranks with lr = {lr:g} and max_norm = {max_norm:.3g}"
        check_replicas(states, when, next((c for c in causes if c), ""))
        if said := difference(states[0], moved(start, clipped(mean, max_norm), lr), *ALONE):
            right, long = min(max_norm, float(mean.norm())), float(steps[0].norm())
            raise Wrong(
                f"{when}, replicas are equal, but {said}. The mean gradient has the norm "
                f"{float(mean.norm()):.4g}, so the step should be lr times "
                f"{right:.4g} long, and is lr times {long:.4g}. "
                f"{causes[0]}".strip()
            )
    weights = dict(start)
    for t in range(STEPS):
        g = sum(gradient(weights, case.share(rank, t)) for rank in range(ranks))
        mean = torch.as_tensor(g) / ranks / case.rows
        weights = moved(weights, clipped(mean, norms[0]), lr)
    check_replicas([result[2] for result in results], f"After {STEPS} steps")
    if said := difference(results[0][2], weights, *ALONE):
        raise Wrong(f"One step is right. After {STEPS} steps on rank 0, {said}")


def cause(
    start: State, step: torch.Tensor, own: list[torch.Tensor], rank: int, max_norm: float
) -> str:
    """What a rank's step was made of, if it is a known mistake."""
    total = torch.stack(own).sum(0)
    mean = total / len(own)
    each = [clipped(g, max_norm) for g in own]
    alone = f"Rank {rank} stepped by the gradient of its own rows alone"
    early = "Each rank clipped its own gradient before the average"
    suspects = {
        alone: own[rank],
        f"{alone}, clipped": each[rank],
        early: torch.stack(each).mean(0),
        "It is the mean, each tensor of it limited by a norm of its own": torch.cat(
            [clipped(part, max_norm) for part in mean.split([w.numel() for w in start.values()])]
        ),
        "It is not limited at all": mean,
        "It is made of the sum over ranks, not of the mean": clipped(total, max_norm),
        "It is the sum over ranks, and not limited": total,
    }
    if recognise(step, {"right": clipped(mean, max_norm)}, 1e-5):
        return ""
    return recognise(step, suspects, 1e-5)
