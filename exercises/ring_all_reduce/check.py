"""Ring all-reduce by messages: whose elements are where, equal bits, and bytes."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.all_reduce import ring_sent
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, mark, on_ranks, whose

HINTS = [
    "In N − 1 steps each part travels once around the ring and collects; in N − 1 more steps the "
    "finished parts travel around.",
    "In step s of the first half rank r sends part (r − s) mod N, and adds what comes to part "
    "(r − s − 1) mod N.",
    "After the first half, rank r has part (r + 1) mod N whole. `group.exchange(outgoing, to, "
    "incoming, source)` sends and receives at once.",
]


def run(group: Group, answer: Callable[..., Any], n: int) -> tuple[torch.Tensor, int]:
    group.trace = trace = Trace(group.rank)
    x = torch.full((n,), mark(group.rank), dtype=torch.float64)
    answer(group, x)
    group.trace = None
    return x, trace.sent // 8


def check(ring_all_reduce: Callable[..., Any], *, draw: Draw) -> str:
    drawn = ((draw(2, 5), draw(1, 9)) for _ in range(2))
    for ranks, per_part in chain(((2, 3), (3, 1), (4, 5)), drawn):
        n = ranks * per_part
        for rank, (x, sent) in enumerate(on_ranks(run, ring_all_reduce, n, ranks=ranks)):
            for place, number in enumerate(x.tolist()):
                if problem := whose(number, ranks):
                    where = f"x[{place}] on rank {rank} (part {place // per_part})"
                    raise Wrong(f"{ranks} ranks, {n} elements: {where}: {problem}")
            right = ring_sent(n, rank, ranks).elements
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
    return "Right: all sums on all ranks, with 2n(N − 1)/N elements from each rank."
