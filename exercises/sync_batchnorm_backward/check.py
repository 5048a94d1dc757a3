"""BatchNorm's backward pass over all ranks: both means, of all rows, in one message."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.batchnorm import across
from playground.exercises.check import Draw, Wrong, compare, on_ranks
from playground.exercises.watch import Event, watched

HINTS = [
    "A row changes the mean and the variance, and so every other row's output. Hence two sums over "
    "all rows: of dx̂, and of dx̂ x̂.",
    "dx = scale · (dx̂ − mean(dx̂) − x̂ · mean(dx̂ x̂)); the means run over the rows of all ranks.",
    "`sums = torch.stack([grad.sum(0), (grad * normed).sum(0)])`, all-reduce it, divide by the "
    'rows of all ranks. Ranks have different numbers of rows: op="avg" gives another mean.',
]
LOOK = {  # words of a message → the name in the answer to look at
    "the mean of the ranks' means": "all_reduce",
    "this rank's own rows": "mean|len|shape",
    "put both sums into one array": "all_reduce",
    "divided by the ranks, too": "all_reduce",
}
CASES = [(3, [2, 5, 3], 4), (2, [1, 6], 1)]
EPS = 1e-5


def rows_of(counts: list[int], channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x[B, c] and dx̂[B, c] of the whole batch."""
    generator = torch.Generator().manual_seed(channels)
    x, grad = torch.randn(2, sum(counts), channels, generator=generator, dtype=torch.float64)
    return 3 * x + 1, grad + 0.5


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x̂[B, c] and scale[c] = 1 / √(σ² + ε)."""
    mean, variance = x.mean(0), x.var(0, unbiased=False)
    scale = (variance + EPS).rsqrt()
    return (x - across(mean, x)) * across(scale, x), scale


def run(
    group: Group, answer: Callable[..., Any], counts: list[int], channels: int
) -> tuple[Any, list[Event]]:
    x, grad = rows_of(counts, channels)
    normed, scale = forward(x)
    mine = slice(sum(counts[: group.rank]), sum(counts[: group.rank + 1]))
    with watched(group) as events:
        dx = answer(group, grad[mine].clone(), normed[mine].clone(), scale, sum(counts))
    return dx, events


def drawn(draw: Draw) -> tuple[int, list[int], int]:
    ranks = draw(2, 4)
    return ranks, [draw(1, 9) for _ in range(ranks)], draw(1, 6)


def check(backward: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, counts, channels in chain(CASES, (drawn(draw) for _ in range(1))):
        x, grad = rows_of(counts, channels)
        x.requires_grad_()
        forward(x)[0].backward(grad)
        assert x.grad is not None
        right = x.grad.split(counts)
        mistakes = typical_mistakes(counts, channels)
        results = on_ranks(run, backward, counts, channels, ranks=ranks)
        for rank, (dx, events) in enumerate(results):
            where = f"{ranks} ranks with {counts} rows: "
            for mistake, wrong in mistakes.items():
                theirs = wrong.split(counts)[rank]
                is_it = isinstance(dx, torch.Tensor) and dx.shape == theirs.shape
                if (
                    is_it
                    and torch.allclose(dx, theirs, 1e-9)
                    and not torch.allclose(theirs, right[rank], 1e-9)
                ):
                    at = (dx - right[rank]).abs().max().item()
                    raise Wrong(f"{where}dx on rank {rank} is off by up to {at:.3g}: {mistake}")
            compare("dx", dx, right[rank], 1e-9, f"{where}rank {rank}: ")
            check_sent(f"{where}dx is right, but rank {rank} ", events, channels)
    return "Right: the gradients of one device with all rows, by one all-reduce of 2c elements."


def check_sent(said: str, events: list[Event], channels: int) -> None:
    elements = sum(e.elements for e in events)
    if elements > 2 * channels:
        raise Wrong(
            f"{said}sends {elements} elements; two sums for each channel are {2 * channels}. Sum "
            "over your own rows first"
        )
    if len(events) > 1:
        raise Wrong(
            f"{said}needs {len(events)} messages, one after the other: put both sums into one array"
        )


def typical_mistakes(counts: list[int], channels: int) -> dict[str, torch.Tensor]:
    """dx[B, c] by typical mistakes, by what there is to say about them."""
    x, grad = rows_of(counts, channels)
    normed, scale = forward(x)
    along = grad * normed

    def over(what: torch.Tensor, mean: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return torch.cat([mean(part).expand(len(part), -1) for part in what.split(counts)])

    def own(what: torch.Tensor) -> torch.Tensor:
        return over(what, lambda part: part.mean(0))

    def of_means(what: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.mean(0) for part in what.split(counts)]).mean(0)

    def sums_by_own(what: torch.Tensor) -> torch.Tensor:
        return over(what, lambda part: what.sum(0) / len(part))

    n = len(counts)
    return {
        "both means are over this rank's own rows": scale
        * (grad - own(grad) - normed * own(along)),
        "it is the mean of the ranks' means, and ranks have different numbers of rows": (
            scale * (grad - of_means(grad) - normed * of_means(along))
        ),
        "the sums over all rows are divided by this rank's own rows": (
            scale * (grad - sums_by_own(grad) - normed * sums_by_own(along))
        ),
        "the sums over all rows are divided by the ranks, too": (
            scale * (grad - grad.mean(0) / n - normed * along.mean(0) / n)
        ),
        "the sums over all rows are not divided by their number": (
            scale * (grad - grad.sum(0) - normed * along.sum(0))
        ),
        "the variance is taken as a constant: the term x̂ · mean(dx̂ x̂) is missing": (
            scale * (grad - grad.mean(0))
        ),
        "the mean is taken as a constant: the term mean(dx̂) is missing": (
            scale * (grad - normed * along.mean(0))
        ),
        "mean and variance are taken as constants: no other row is in it": scale * grad,
        "the factor scale is missing": grad - grad.mean(0) - normed * along.mean(0),
    }
