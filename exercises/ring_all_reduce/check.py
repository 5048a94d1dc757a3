"""Ring all-reduce by messages: the sums, the number of elements sent, and the rank they go to."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.all_reduce import ring_sent
from playground.exercises.check import Draw, Wrong, mark, on_ranks, whose
from playground.exercises.watch import Event, watched

HINTS = [
    "In N − 1 steps, each part travels once around the ring and is added up. In N − 1 more steps, "
    "the finished parts travel around.",
    "In step s = 0 … N − 2 of the first half, rank r sends part (r − s) mod N and adds what "
    "arrives to part (r − s − 1) mod N.",
    "After the first half, part (r + 1) mod N is complete on rank r, so rank r sends that part "
    "first in the second half. `group.exchange(outgoing, to, incoming, source)` sends and receives "
    "at the same time.",
]


def run(group: Group, answer: Callable[..., Any], n: int) -> tuple[list, list, list[Event]]:
    """What the sums are of marks and of places, and what this rank did."""
    marks = torch.full((n,), mark(group.rank), dtype=torch.float64)
    places = torch.arange(n, dtype=torch.float64)
    with watched(group) as events:
        answer(group, marks)
    answer(group, places)
    return marks.tolist(), (places / group.size).tolist(), events


def check(ring_all_reduce: Callable[..., Any], *, draw: Draw) -> str:
    drawn = ((draw(2, 5), draw(1, 9)) for _ in range(2))
    for ranks, per_part in chain(((2, 3), (3, 1), (4, 5)), drawn):
        n = ranks * per_part
        results = on_ranks(run, ring_all_reduce, n, ranks=ranks)
        for rank, (sums, places, events) in enumerate(results):
            check_sums(ranks, rank, per_part, sums, places)
            check_messages(ranks, rank, n, events)
    return "Right: all sums on all ranks, with 2n(N − 1)/N elements from each rank."


def check_sums(
    ranks: int, rank: int, per_part: int, sums: list[float], places: list[float]
) -> None:
    """Raise `Wrong` unless every rank is in each sum once, with the same element of x."""
    for i, (total, place) in enumerate(zip(sums, places, strict=True)):
        where = f"{ranks} ranks, {len(sums)} elements: x[{i}] on rank {rank} (part {i // per_part})"
        if problem := whose(total, ranks):
            raise Wrong(f"{where}: {problem}")
        if place != i:
            raise Wrong(
                f"{where} is not the sum of every rank's x[{i}]: elements of other parts are in "
                "it. Which part comes in this step?"
            )


def check_messages(ranks: int, rank: int, n: int, events: list[Event]) -> None:
    """Raise `Wrong` unless the rank sends as much as in a ring, and to the next rank only."""
    sends = [event for event in events if event.name == "send"]
    sent, right = sum(event.elements for event in sends), ring_sent(n, rank, ranks).elements
    if sent > right:
        raise Wrong(
            f"The sums are right, but rank {rank} of {ranks} sends {sent} elements for "
            f"{n}; a ring needs {right} = 2n(N − 1)/N. Send parts, not the whole array"
        )
    if sent < right:
        raise Wrong(
            f"The sums are right, but only {sent} elements went from rank {rank} to others "
            "by messages: use `group.send`, `receive` or `exchange`, not a collective"
        )
    after = (rank + 1) % ranks
    if others := [event.peer for event in sends if event.peer != after]:
        raise Wrong(
            f"The sums are right, but rank {rank} of {ranks} sends to rank {others[0]}. In a ring "
            f"it sends to the next rank only, {after}"
        )
