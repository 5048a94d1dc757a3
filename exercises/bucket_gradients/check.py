"""Gradients in buckets: which fit, in which order they leave, how often, and what comes back."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, compare, mark, on_ranks, whose
from playground.exercises.watch import Event, paired, told, watched

HINTS = [
    "Go through reversed(parameters). Put a gradient into the open bucket if its bytes still fit, "
    "else close that bucket and open a new one.",
    "Bytes are `grad.nbytes`. A gradient that alone is larger than `most` has a bucket of its own: "
    "an empty bucket takes any gradient. And the last bucket must leave, too.",
    "`flat = torch.cat([p.grad.flatten() for p in bucket])` is a copy. After the all-reduce, cut "
    "it with `flat.split(sizes)` and copy each piece back with `p.grad.copy_(piece.view_as(...))`.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "is the sum,": "all_reduce",
    "buckets from the first parameter on": "parameters",
    "is still rank \\d's alone$": "split|cat",
}
CASES = [
    (3, 160, [(3, 4), (4,), (5, 2), (7,), (1,), (2, 3, 2), (7,)]),
    (2, 100, [(2, 2), (3,), (20,), (4,), (5,), (6,), (1, 1)]),
]


def run(
    group: Group, answer: Callable[..., Any], most: int, shapes: list[tuple[int, ...]]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Event]]:
    parameters = [torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, mark(group.rank))
    with watched(group) as events:
        answer(group, parameters, most)
    marks = [p.grad for p in parameters if p.grad is not None]
    for number, parameter in enumerate(parameters):
        parameter.grad = places(number, parameter.shape)
    answer(group, parameters, most)
    return marks, [p.grad for p in parameters if p.grad is not None], events


def race(group: Group, answer: Callable[..., Any]) -> tuple[float, float, float]:
    """Many small gradients in buckets, and each alone, as the chapter before has them."""
    parameters = [torch.nn.Parameter(torch.zeros(50)) for _ in range(40)]
    for parameter in parameters:
        parameter.grad = torch.ones(50)

    def alone() -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            group.all_reduce(parameter.grad, "avg")

    return paired(group, lambda: answer(group, parameters, 4_000), alone)


def places(number: int, shape: torch.Size) -> torch.Tensor:
    """number · 1000 + where, in every place of a gradient."""
    return 1000.0 * number + torch.arange(shape.numel(), dtype=torch.float64).view(shape)


def fill(sizes: list[int], most: int) -> list[int]:
    """The bytes of each bucket, for gradients of these bytes in this order."""
    filled: list[int] = []
    for size in sizes:
        if filled and filled[-1] + size <= most:
            filled[-1] += size
        else:
            filled.append(size)
    return filled


def drawn(draw: Draw) -> tuple[int, int, list[tuple[int, ...]]]:
    shapes = [tuple(draw(1, 5) for _ in range(draw(1, 3))) for _ in range(draw(3, 9))]
    return draw(2, 4), 8 * draw(10, 60), shapes


def check(bucket_gradients: Callable[..., Any], *, draw: Draw) -> str:
    counts = []
    for ranks, most, shapes in chain(CASES, (drawn(draw) for _ in range(2))):
        said = f"{ranks} ranks, buckets of {most} bytes: "
        sizes = [8 * torch.Size(shape).numel() for shape in shapes]
        right = fill(sizes[::-1], most)
        results = on_ranks(run, bucket_gradients, most, shapes, ranks=ranks)
        for rank, (marks, found, _) in enumerate(results):
            for number, (grad, back) in reversed(list(enumerate(zip(marks, found, strict=True)))):
                what = f"{said}the gradient of parameter {number} on rank {rank}"
                check_average(what, grad, ranks, number == len(shapes) - 1)
                check_places(what, back, number, shapes)
        for rank, (_, _, events) in enumerate(results):
            check_calls(f"{said}the gradients are right, but rank {rank} ", events, sizes, most)
        counts.append(f"{len(right)} all-reduces for {len(shapes)} gradients")
    time = told(on_ranks(race, bucket_gradients, ranks=2)[0], "each gradient alone")
    return f"Right: {' and '.join(counts[: len(CASES)])}, every byte once. {time}."


def check_places(what: str, grad: torch.Tensor, number: int, shapes: list[tuple[int, ...]]) -> None:
    right = places(number, torch.Size(shapes[number]))
    if grad.shape == right.shape:
        for i, (a, b) in enumerate(zip(grad.flatten(), right.flatten(), strict=True)):
            other, place = divmod(round(a.item()), 1000)
            if abs(a - b) > 0.1 and 0 <= other < len(shapes):
                raise Wrong(
                    f"{what} has at place {i} what belongs to place {place} of parameter {other}: "
                    "cut a bucket in the order in which it was filled"
                )
    compare("it", grad, right, 1e-9, f"{what}: ")


def check_average(what: str, grad: torch.Tensor, ranks: int, first: bool) -> None:
    for value in grad.flatten().tolist():
        if (own := find(value, ranks)) is not None:
            last = "" if first else ", and others are averaged: did the last bucket leave?"
            raise Wrong(f"{what} is still rank {own}'s alone{last}")
        if not whose(value, ranks):
            raise Wrong(f"{what} is the sum, {ranks} times the mean")
        if problem := whose(round(value * ranks, 6), ranks):
            raise Wrong(f"{what} is not the mean: {problem}")


def find(value: float, ranks: int) -> int | None:
    """The rank whose mark this is."""
    return next((rank for rank in range(ranks) if value == mark(rank)), None)


def check_calls(said: str, events: list[Event], sizes: list[int], most: int) -> None:
    found = [e.bytes for e in events if e.peer is None and e.elements]
    right = fill(sizes[::-1], most)
    if found == right:
        if any(e.peer is not None for e in events):
            raise Wrong(f"{said}sends messages besides: {len(right)} all-reduces are enough")
        return
    if sum(found) != sum(sizes):
        raise Wrong(f"{said}reduces {sum(found)} bytes; all gradients have {sum(sizes)}")
    for i, size in enumerate(found):
        if size > max(most, max(sizes)):
            if len(found) == 1:
                raise Wrong(
                    f"{said}puts all gradients into one bucket of {size} bytes; {most} bytes are "
                    "allowed (not elements: one has 8 bytes)"
                )
            raise Wrong(
                f"{said}puts {size} bytes into bucket {i}, and {most} are allowed: "
                "close it before it is too full"
            )
    if len(found) == len(sizes):
        raise Wrong(
            f"{said}calls all_reduce {len(found)} times, once for each gradient; {len(right)} "
            "buckets are enough"
        )
    if found == fill(sizes, most):
        raise Wrong(
            f"{said}fills buckets from the first parameter on; backward ends with that one, so "
            "start from the last"
        )
    raise Wrong(f"{said}has buckets of {found} bytes; they should have {right}")
