"""Time two ways to do one thing, in turn, so that a drift of the machine meets both."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playground.environment import environment

ROOT = Path(__file__).parents[1]


def seconds(work: Callable[[], Any]) -> float:
    """How long one call takes (s)."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(
    name: str,
    ours: Callable[[], float],
    peer_name: str,
    peer: Callable[[], float],
    *,
    pairs: int,
    ranks: int = 1,
    size: int = 0,
) -> dict[str, Any]:
    """One row: the medians, and the median over pairs of peer ÷ ours (above 1: ours is faster).

    `ours` and `peer` do the work once and return how long it took (s). The first pair warms up.
    `size` is in bytes.
    """
    times = [(ours(), peer()) for _ in range(pairs + 1)][1:]
    return summary(name, times, peer_name, ranks, size)


def summary(
    name: str, times: list[tuple[float, float]], peer_name: str, ranks: int, size: int
) -> dict[str, Any]:
    """The row of `compare`, from pairs of times (ours, the peer's) in seconds."""
    ratios = [theirs / mine for mine, theirs in times]
    return {
        "id": name,
        "ours_s": statistics.median(mine for mine, _ in times),
        "peer": peer_name,
        "peer_s": statistics.median(theirs for _, theirs in times),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "pairs": len(times),
        "ranks": ranks,
        "bytes": size,
        "env": environment(),
    }
