"""What all algorithms of all-reduce share: parts of an array, how to combine two, what is sent.

An algorithm is a function of a group, this rank's x[n] and the way to combine: x is changed in
place. Beside it stands its formula: what a rank sends, in numbers and in messages.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.runtime.trace import Trace

Combine = Callable[..., Any]  # combine(a, b, out=a): a[n] ← a[n] with b[n]
Algorithm = Callable[[Group, torch.Tensor, Combine], None]
COMBINE: dict[str, Combine] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}
PIECE = 1 << 20  # numbers of one message of a long part: work on it while the next one comes


class Sent(NamedTuple):
    """What one rank sends: numbers of the array's dtype, and messages."""

    numbers: int
    messages: int


def cut_up(x: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Views of x[n] that differ in length by one at most: part i is x[n·i/N : n·(i + 1)/N]."""
    return [x[start:end] for start, end in pairwise(bounds(len(x), parts))]


def in_parts(group: Group, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
    """Views of whole[N·s], one for each rank, as large as part[s]; ValueError if it has others."""
    group.check_parts(whole, part)
    if not whole.is_contiguous():
        raise ValueError(f"x and out: {list(whole.shape)} has gaps, give it as .contiguous()")
    return cut_up(whole.view(-1), group.size)


def bounds(n: int, parts: int) -> list[int]:
    """Where to cut n numbers into parts: part i is [i] to [i + 1]."""
    return [n * i // parts for i in range(parts + 1)]


def others(group: Group) -> list[int]:
    """All ranks but this one, in order."""
    return [rank for rank in range(group.size) if rank != group.rank]


def count(group: Group, n: int, algorithm: Algorithm) -> Sent:
    """Sum x[n] of float32 over the ranks by `algorithm`, and check it; what this rank sent."""
    x = torch.full((n,), float(group.rank))
    group.trace = trace = Trace(group.rank)
    algorithm(group, x, torch.add)
    group.trace = None
    assert (x == sum(range(group.size))).all()
    return Sent(trace.sent // x.itemsize, trace.messages)
