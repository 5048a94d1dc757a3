"""Clip gradients by their global norm when each rank has only a shard of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal

HINTS = [
    "You can't add up norms, but you can add up their squares. So which single number does each "
    "rank have to send?",
    "A replicated gradient is the same on every rank. How often would an all-reduce count it?",
    "Every gradient gets the same factor, and the factor is never larger than 1. What does an "
    "empty shard add to the sum?",
]


class Case(NamedTuple):
    """Lengths of each rank's shards and of replicated gradients, their scale, and the limit."""

    shards: list[list[int]]
    replicated: list[int]
    size: float
    max_norm: float
    seed: int

    def gradients(self, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """A rank's shards, and the replicated ones."""

        def made(owner: int, lengths: list[int]) -> list[torch.Tensor]:
            return [
                self.size * normal(n, seed=(owner, self.seed, i)) for i, n in enumerate(lengths)
            ]

        return made(rank, self.shards[rank]), made(9, self.replicated)


CASES = [
    Case([[3, 2], [4, 1]], [2], 1.0, 1.0, 0),
    Case([[5], [0]], [], 2.0, 0.5, 1),
    Case([[3], [3]], [4, 1], 0.01, 5.0, 2),
    Case([[3], [2]], [2], 1e-6, 1e-6, 3),  # as small as the 1e-6 that is added to the norm
]


def drawn(draw: Draw, size: float) -> Case:
    """Gradients of three ranks, of which the last has at least one element."""
    count = draw(1, 3)
    shards = [[draw(0, 6) for _ in range(count)] for _ in range(3)]
    shards[2][0] += 1
    replicated = [draw(1, 5) for _ in range(draw(0, 3))]
    return Case(shards, replicated, size, draw(1, 9) / 10, draw(3, 10**6))


def run(
    group: Group, answer: Callable[..., Any], cases: list[Case]
) -> list[tuple[Any, list[list[torch.Tensor]], int]]:
    rings, found = RingGroup(group), []
    for case in cases:
        shards, replicated = case.gradients(group.rank)
        rings.trace = trace = Trace(group.rank)
        norm = answer(rings, shards, replicated, case.max_norm)
        found.append((norm, [shards, replicated], trace.sent))
    return found


def check(clip: Callable[..., Any], *, draw: Draw) -> str:
    check_cases(clip, CASES, 2)
    check_cases(clip, [drawn(draw, 3.0), drawn(draw, 1.0), drawn(draw, 0.01)], 3)
    return "Right: all ranks use one norm, which counts replicated gradients once."


def check_cases(clip: Callable[..., Any], cases: list[Case], ranks: int) -> None:
    results = on_ranks(run, clip, cases, ranks=ranks)
    for number, case in enumerate(cases):
        for rank in range(ranks):
            here = f"{ranks} ranks, case {number}, rank {rank}: "
            check_case(here, case, rank, ranks, *results[rank][number])


def check_case(
    here: str,
    case: Case,
    rank: int,
    ranks: int,
    norm: Any,
    scaled: list[list[torch.Tensor]],
    sent: int,
) -> None:
    max_norm = case.max_norm
    each = [case.gradients(r) for r in range(ranks)]
    local = [sum(float(g.square().sum()) for g in shards) for shards, _ in each]
    same = sum(float(g.square().sum()) for g in each[0][1])
    right = (sum(local) + same) ** 0.5
    suspects = {
        f"This counts the replicated gradients {ranks} times, once per rank": (
            sum(local) + ranks * same
        )
        ** 0.5,
        f"This is the norm of rank {rank}'s gradients, without the other ranks' shards": (
            local[rank] + same
        )
        ** 0.5,
        "This is the norm of the shards, without the replicated gradients": sum(local) ** 0.5,
        "This is the square of the norm": right**2,
        "This adds norms: add squares, and take the root once": sum(
            (square + same) ** 0.5 for square in local
        ),
        "This adds the ranks' norms: add squares, and take the root once": sum(
            square**0.5 for square in local
        )
        + same**0.5,
        "This is the mean of the ranks' squares, not their sum": (sum(local) / ranks + same) ** 0.5,
        "This is the norm after clipping; return the norm before it": min(right, max_norm),
    }
    if norm is not None:
        norm = torch.as_tensor(norm).reshape(())
    expect("norm", norm, right, suspects, 1e-5, here)
    factor = min(1.0, max_norm / (right + 1e-6))
    mine, replicated = each[rank]
    for kind, after, before in zip(
        ("shard", "replicated"), scaled, (mine, replicated), strict=True
    ):
        for i, (found, start) in enumerate(zip(after, before, strict=True)):
            change = {
                "The norm is right, but this gradient hasn't changed: scale it in place": start,
                f"The norm is {right:.3g}, and {max_norm:g} is allowed: if the norm is small "
                "enough, the gradients must not grow": start * max_norm / (right + 1e-6),
                "It is scaled twice": start * factor**2,
                "The factor is max_norm / (norm + 1e-6)": start * min(1.0, max_norm / right),
            }
            expect(f"{kind} {i}", found, start * factor, change, 1e-5, here)
    if sent > 64:
        raise Wrong(
            f"{here}the gradients are right, but it sends {sent} bytes. One number per rank is "
            "enough: 16 bytes in a ring"
        )
