"""Stretches of time as sorted lists of (start, end) that do not touch.

Each function goes over its lists once, so a trace of a hundred thousand events costs no more than
its sorting.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Stretches = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Stretches:
    """What at least one of them covers."""
    found: Stretches = []
    left = right = 0.0
    is_open = False
    for start, end in sorted(intervals):
        if is_open and start <= right:
            right = max(right, end)
            continue
        if is_open and right > left:
            found.append((left, right))
        left, right, is_open = start, end, True
    if is_open and right > left:
        found.append((left, right))
    return found


def length(stretches: Stretches) -> float:
    return sum(end - start for start, end in stretches)


def minus(stretches: Stretches, taken: Stretches) -> Stretches:
    """What of the first the second does not cover."""
    found: Stretches = []
    at = 0
    for start, end in stretches:
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        here = at
        while here < len(taken) and taken[here][0] < end:
            if taken[here][0] > start:
                found.append((start, taken[here][0]))
            start = max(start, taken[here][1])
            here += 1
        if start < end:
            found.append((start, end))
    return found


def both(first: Stretches, second: Stretches) -> Stretches:
    """What both cover."""
    return minus(first, minus(first, second))


def within(stretches: Stretches, start: float, end: float) -> Stretches:
    """What of them lies between two moments."""
    first = bisect_right(stretches, start, key=lambda each: each[1])
    last = bisect_left(stretches, end, key=lambda each: each[0])
    return [(max(start, a), min(end, b)) for a, b in stretches[first:last]]
