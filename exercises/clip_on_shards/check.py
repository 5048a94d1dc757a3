"""Clip gradients by their global norm where each rank has a share of them."""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Wrong, on_ranks
from playground.exercises.suspects import expect, normal

HINTS = [
    "Norms do not add up, their squares do: ‖g‖² = Σ over ranks of ‖share‖². One number from each "
    "rank is all that needs to be sent.",
    "A replicated gradient is the same on every rank: add its square after the all-reduce, once.",
    "Scale by min(1, max_norm / (norm + 1e-6)), everything in place: shares and replicated.",
]
# For 2 or 3 ranks: lengths of a rank's shares by rank, replicated lengths, size, the most allowed.
CASES = [
    ([[3, 2], [4, 1], [2, 2]], [2], 1.0, 1.0),
    ([[5], [0], [1]], [], 2.0, 0.5),
    ([[3], [3], [3]], [4, 1], 0.01, 5.0),
]


def gradients(rank: int, case: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A rank's shares, and the replicated ones."""
    shares, replicated, size, _ = CASES[case]
    mine = [size * normal(n, seed=(rank, case, i)) for i, n in enumerate(shares[rank])]
    return mine, [size * normal(n, seed=(9, case, i)) for i, n in enumerate(replicated)]


def run(
    group: Group, answer: Callable[..., Any]
) -> list[tuple[Any, list[list[torch.Tensor]], int]]:
    rings, found = RingGroup(group), []
    for case, (*_, max_norm) in enumerate(CASES):
        shares, replicated = gradients(group.rank, case)
        rings.trace = trace = Trace(group.rank)
        norm = answer(rings, shares, replicated, max_norm)
        found.append((norm, [shares, replicated], trace.sent))
    return found


def check(clip: Callable[..., Any]) -> str:
    for ranks in (2, 3):
        results = on_ranks(run, clip, ranks=ranks)
        for case in range(len(CASES)):
            for rank in range(ranks):
                check_case(case, rank, ranks, *results[rank][case])
    return "Right: one norm on all ranks, replicated gradients in it once, a few bytes sent."


def check_case(
    case: int, rank: int, ranks: int, norm: Any, scaled: list[list[torch.Tensor]], sent: int
) -> None:
    max_norm = CASES[case][3]
    each = [gradients(r, case) for r in range(ranks)]
    local = [sum(float(g.square().sum()) for g in shares) for shares, _ in each]
    same = sum(float(g.square().sum()) for g in each[0][1])
    right = (sum(local) + same) ** 0.5
    here = f"{ranks} ranks, case {case}, rank {rank}: "
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
            }
            expect(f"{kind} {i}", found, start * factor, change, 1e-5, here)
    if sent > 64:
        raise Wrong(
            f"{here}the gradients are right, but {sent} bytes are sent. One number from each rank "
            "is enough: 16 bytes in a ring"
        )
