"""A program that hangs in two places: it has to end, return the right sums, and send no more."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch

from distributed import Group
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, mark, on_ranks, whose
from playground.exercises.watch import Event, watched

HINTS = [
    "Read the verdict. It says in which line each rank waits. Which rank is it waiting for, and "
    "what does that rank have to do first?",
    "`send` can wait until the other side receives. If all ranks send first, none of them "
    "receives. `group.exchange(outgoing, to, incoming, source)` does both at the same time.",
    "A barrier is a collective, so it ends only when every rank has called it. Which ranks reach "
    "this one, and is it needed? A message that has arrived was sent.",
]


def run(group: Group, answer: Callable[..., Any], n: int) -> tuple[Any, Any, list[Event], int]:
    x = torch.full((n,), mark(group.rank), dtype=torch.float64)
    group.trace = trace = Trace(group.rank)
    try:
        with watched(group) as events:
            result = answer(group, x)
    finally:
        group.trace = None
    shifted, total = result if isinstance(result, tuple | list) else (result, None)
    arrays = torch.Tensor | np.ndarray
    lists = [t.tolist() if isinstance(t, arrays) else None for t in (shifted, total)]
    return lists[0], lists[1], events, trace.handed_over


def check(shift_and_sum: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, n in chain([(4, 50_000)], ((draw(2, 5), draw(1, 60)) for _ in range(1))):
        said = f"{ranks} ranks: "
        results = on_ranks(run, shift_and_sum, n, ranks=ranks, timeout=8.0)
        for rank, (shifted, _, _, _) in enumerate(results):
            before = (rank - 1) % ranks
            if shifted is None or len(shifted) != n:
                raise Wrong(f"{said}rank {rank} returns no array of {n} elements first")
            for i, number in enumerate(shifted):
                if number != mark(before):
                    owner = {mark(r): f"rank {r} gave" for r in range(ranks)}.get(number)
                    raise Wrong(
                        f"{said}it ends, but shifted[{i}] on rank {rank} is "
                        f"{'what ' + owner if owner else f'{number:g}, which nobody gave'}; it "
                        f"should be what rank {before} gave"
                    )
        total = results[0][1]
        if not isinstance(total, list) or len(total) != n:
            raise Wrong(f"{said}it ends, but rank 0 returns no sum of {n} elements")
        for number in total:
            if problem := whose(number, ranks):
                raise Wrong(f"{said}it ends, but the sum on rank 0 is not whole: {problem}")
        for rank, (_, _, events, handed_over) in enumerate(results):
            if handed_over:
                used = [e.name for e in events if e.peer is None and e.elements] or ["a collective"]
                raise Wrong(
                    f"{said}it ends, and is right, but rank {rank} calls {used[0]}: keep to "
                    "messages, and put them in an order that ends"
                )
            sent = sum(e.elements for e in events if e.name == "send")
            right = n * (1 + (rank > 0))
            if sent > right:
                raise Wrong(
                    f"{said}it ends, and is right, but rank {rank} sends {sent} elements, not "
                    f"{right}: the program needs no more messages, only another order"
                )
    return "Right: it ends, everything arrives, and nothing is sent that was not sent before."
