"""Clip gradients by their global norm where each rank has a share of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal

HINTS = [
    "Norms do not add up, their squares do: ‖g‖² = Σ over ranks of ‖share‖². One number from each "
    "rank is all that needs to be sent.",
    "A replicated gradient is the same on every rank: add its square after the all-reduce, once.",
    "Scale by min(1, max_norm / (norm + 1e-6)), everything in place: shares and replicated.",
]


class Case(NamedTuple):
    """Lengths of each rank's shares, and of what is replicated; their size, the most allowed."""

    shares: list[list[int]]
    replicated: list[int]
    size: float
    max_norm: float
    seed: int

    def gradients(self, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """A rank's shares, and the replicated ones."""

        def made(owner: int, lengths: list[int]) -> list[torch.Tensor]:
            return [
                self.size * normal(n, seed=(owner, self.seed, i)) for i, n in enumerate(lengths)
            ]

        return made(rank, self.shares[rank]), made(9, self.replicated)


CASES = [
    Case([[3, 2], [4, 1]], [2], 1.0, 1.0, 0),
    Case([[5], [0]], [], 2.0, 0.5, 1),
    Case([[3], [3]], [4, 1], 0.01, 5.0, 2),
    Case([[3], [2]], [2], 1e-6, 1e-6, 3),  # as small as what is added to the norm
]


def drawn(draw: Draw, size: float) -> Case:
    """Gradients of three ranks, of which the last has at least one element."""
    count = draw(1, 3)
    shares = [[draw(0, 6) for _ in range(count)] for _ in range(3)]
    shares[2][0] += 1
    replicated = [draw(1, 5) for _ in range(draw(0, 3))]
    return Case(shares, replicated, size, draw(1, 9) / 10, draw(3, 10**6))


def run(
    group: Group, answer: Callable[..., Any], cases: list[Case]
) -> list[tuple[Any, list[list[torch.Tensor]], int]]:
    rings, found = RingGroup(group), []
    for case in cases:
        shares, replicated = case.gradients(group.rank)
        rings.trace = trace = Trace(group.rank)
        norm = answer(rings, shares, replicated, case.max_norm)
        found.append((norm, [shares, replicated], trace.sent))
    return found


def check(clip: Callable[..., Any], *, draw: Draw) -> str:
    check_cases(clip, CASES, 2)
    check_cases(clip, [drawn(draw, 3.0), drawn(draw, 1.0), drawn(draw, 0.01)], 3)
    return "Right: one norm on all ranks, replicated gradients in it once, a few bytes sent."


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
    local = [sum(float(g.square().sum()) for g in shares) for shares, _ in each]
    same = sum(float(g.square().sum()) for g in each[0][1])
    right = (sum(local) + same) ** 0.5
    suspects = {
        f"That counts what is replicated {ranks} times, once on each rank": (
            sum(local) + ranks * same
        )
        ** 0.5,
        f"That is the norm of what rank {rank} has, without the other ranks' shares": (
            local[rank] + same
        )
        ** 0.5,
        "That is the norm of the shares alone: what is replicated is missing": sum(local) ** 0.5,
        "That is the square of the norm": right**2,
        "That adds norms: add squares, and take the root once": sum(
            (square + same) ** 0.5 for square in local
        ),
        "That adds the norms of ranks: add squares, and take the root once": sum(
            square**0.5 for square in local
        )
        + same**0.5,
        "That is the mean of the ranks' squares, and not their sum": (sum(local) / ranks + same)
        ** 0.5,
        "That is the norm after clipping; return the one before": min(right, max_norm),
    }
    if norm is not None:
        norm = torch.as_tensor(norm).reshape(())
    expect("norm", norm, right, suspects, 1e-5, here)
    factor = min(1.0, max_norm / (right + 1e-6))
    mine, replicated = each[rank]
    for kind, after, before in zip(
        ("share", "replicated"), scaled, (mine, replicated), strict=True
    ):
        for i, (found, start) in enumerate(zip(after, before, strict=True)):
            change = {
                "The norm is right, but this gradient is as it was: scale it in place": start,
                f"The norm is {right:.3g}, and at most {max_norm:g} is allowed: a small gradient "
                "must stay as it is, not grow": start * max_norm / (right + 1e-6),
                "It is scaled twice": start * factor**2,
                "The factor is max_norm / (norm + 1e-6)": start * min(1.0, max_norm / right),
            }
            expect(f"{kind} {i}", found, start * factor, change, 1e-5, here)
    if sent > 64:
        raise Wrong(
            f"{here}the gradients are right, but {sent} bytes are sent. One number from each rank "
            "is enough: 16 bytes in a ring"
        )
