"""Ring reduce-scatter by messages: whose elements, which part, which neighbour, how many."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, mark, on_ranks, whose
from playground.exercises.watch import Event, watched

HINTS = [
    "A part travels around the ring and is added up on the way. After N − 1 steps it is complete, "
    "and then it must be on the rank that needs it. So where does it have to start?",
    "Part r must end on rank r, so it starts on rank r + 1, one step past its destination.",
    "In step s = 1 … N − 1, rank r sends part (r − s) mod N and adds what arrives to part "
    "(r − s − 1) mod N. At the end, copy part r into out.",
]


def run(group: Group, answer: Callable[..., Any], s: int) -> tuple[list, list, list[Event]]:
    n = group.size * s
    marks = torch.full((n,), mark(group.rank), dtype=torch.float64)
    places = torch.arange(n, dtype=torch.float64)
    out, from_places = (torch.full((s,), -1.0, dtype=torch.float64) for _ in range(2))
    with watched(group) as events:
        answer(group, marks, out)
    answer(group, places, from_places)
    return out.tolist(), (from_places / group.size).tolist(), events


def check(ring_reduce_scatter: Callable[..., Any], *, draw: Draw) -> str:
    drawn = ((draw(2, 5), draw(1, 9)) for _ in range(2))
    for ranks, s in chain(((2, 3), (3, 1), (4, 5)), drawn):
        said = f"{ranks} ranks, parts of {s}: "
        results = on_ranks(run, ring_reduce_scatter, s, ranks=ranks)
        for rank, (sums, places, _) in enumerate(results):
            for i, number in enumerate(sums):
                if number == -1:
                    raise Wrong(f"{said}out[{i}] on rank {rank} was never written")
                if problem := whose(number, ranks):
                    raise Wrong(f"{said}out[{i}] on rank {rank}: {problem}")
            for i, place in enumerate(places):
                if place != (right := rank * s + i):
                    raise Wrong(
                        f"{said}out[{i}] on rank {rank} is the sum of x[{place:g}], which is in "
                        f"part {place // s:g}; it should be x[{right}], in part {rank}: "
                        "rank r is to have part r"
                    )
        for rank, (_, _, events) in enumerate(results):
            sends = [e for e in events if e.name == "send"]
            if used := [e.name for e in events if e.peer is None]:
                raise Wrong(
                    f"{said}the sums are right, but rank {rank} calls {used[0]}: use messages"
                )
            sent, right = sum(e.elements for e in sends), (ranks - 1) * s
            if sent != right:
                raise Wrong(
                    f"{said}the sums are right, but rank {rank} sends {sent} elements; a ring "
                    f"needs {right} = n(N − 1)/N: one part in each of N − 1 steps"
                )
            for event in sends:
                if event.peer != (after := (rank + 1) % ranks):
                    raise Wrong(
                        f"{said}the sums are right, but rank {rank} sends to rank {event.peer}; in "
                        f"a ring it sends to the next rank only, {after}"
                    )
    return "Right: every rank has its own part of the sum, with n(N − 1)/N elements from each."
