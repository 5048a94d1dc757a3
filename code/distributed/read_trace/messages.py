"""The collectives of a trace: their bytes, their bandwidth, and which rank came last to them.

A collective ends everywhere at about the same time, and begins on each rank when that rank comes.
So the rank with the *shortest* collectives is the one for which the others wait. Clocks of hosts
differ, durations do not: only those are compared.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from distributed.read_trace.events import integer

# Bytes of an element: PyTorch's names of types (c10/core/ScalarType.h), and C's; see `size_of`.
SIZES = {
    1: "byte char bool int8 uint8",
    2: "short half bfloat16 int16 uint16 float16",
    4: "int float complexhalf int32 uint32 float32",
    8: "long double complexfloat int64 uint64 float64",
    16: "complexdouble",
}
KINDS = {
    "internode": "all-to-all",  # DeepEP: dispatch and combine
    "intranode": "all-to-all",
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "sendrecv": "send and receive",
    "reduce": "reduce",
    "barrier": "barrier",
}


class Collective(NamedTuple):
    """One collective on one rank; 0 bytes or members where the trace does not say."""

    start: float  # µs
    end: float
    kind: str
    bytes: int = 0
    members: int = 0

    @property
    def bandwidth(self) -> float:
        """Bytes/s as nccl-tests' busbw: what each rank's link carries in one direction."""
        n, seconds = self.members, (self.end - self.start) / 1e6
        if not self.bytes or n < 2 or seconds <= 0:
            return 0.0
        factor = 2 * (n - 1) / n if self.kind == "all-reduce" else (n - 1) / n
        whole = self.kind in ("broadcast", "reduce", "send and receive")  # on one link
        return (1.0 if whole else factor) * self.bytes / seconds


def kind_of(name: str) -> str:
    """What a kernel, or gloo, calls a collective → what the book calls it."""
    said = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for part, kind in KINDS.items() if part in said), "collective")


def size_of(dtype: str) -> int:
    """Bytes of an element of that type, in lower case; 0 if it isn't known."""
    if dtype.startswith("float8"):  # float8_e4m3fn, float8_e5m2, …
        return 1
    return next((size for size, names in SIZES.items() if dtype in names.split()), 0)


def called(name: str, start: float, end: float, args: Mapping[str, Any]) -> Collective:
    """A collective by the name of its kernel and what PyTorch's profiler adds to that."""
    told = str(args.get("Collective name", ""))
    kind = kind_of(told) if told else "collective"
    kind = kind_of(name) if kind == "collective" else kind
    size = size_of(str(args.get("dtype", "")).lower())
    elements = max(integer(args.get(f"{way} msg nelems")) for way in ("In", "Out"))
    members = integer(args.get("Group size"))
    return Collective(start, end, kind, size * max(elements, 0), members)


def matched(ranks: Sequence[Sequence[Collective]]) -> list[tuple[Collective, ...]]:
    """The same collective on all ranks, which call them in one order; nothing where they differ."""
    if len({len(calls) for calls in ranks}) != 1:
        return []
    together = list(zip(*ranks, strict=True))
    return together if all(len({c.kind for c in each}) == 1 for each in together) else []


class Late(NamedTuple):
    """The rank that the others wait for, and how long in a mean step (µs)."""

    rank: int
    own: float  # µs of a step that it spends in collectives
    others: float  # the same, of a middle one of the others
    steps: int  # in which it was the last
    of: int

    @property
    def waits(self) -> float:
        return self.others - self.own


def who_comes_last(in_collectives: Mapping[int, Sequence[float]]) -> Late | None:
    """Of each rank's µs in collectives, step by step: the rank that is shortest all the time.

    None where there is one rank, or where the shortest is now this rank and now that.
    """
    of = min((len(times) for times in in_collectives.values()), default=0)
    if len(in_collectives) < 2 or not of:
        return None
    shortest = [
        min(in_collectives, key=lambda rank: in_collectives[rank][step]) for step in range(of)
    ]
    last = max(sorted(set(shortest)), key=shortest.count)
    own = mean(in_collectives[last][:of])
    others = median(mean(times[:of]) for rank, times in in_collectives.items() if rank != last)
    count = shortest.count(last)
    return Late(last, own, others, count, of) if count >= 0.75 * of else None
