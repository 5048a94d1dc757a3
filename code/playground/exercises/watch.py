"""Recorder of the messages and collectives of a rank while an answer runs.

    with watched(group) as events: answer(group, x)

An exercise checks more than the numbers: which rank they come from, in how many messages, and in
which order. The events of a rank show that, in the order in which the answer asked for them.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from distributed import Group


class Event(NamedTuple):
    """One message or collective: "send", "receive", or the name of the collective."""

    name: str
    peer: int | None  # None for a collective
    elements: int
    bytes: int


@contextlib.contextmanager
def watched(group: Group) -> Iterator[list[Event]]:
    """What this rank asks for within the block."""
    events: list[Event] = []
    start, announce = group._start, group.announce

    def starting(messages: list[Any]) -> Any:
        for call, x, peer in messages:
            name = "send" if call is dist.isend else "receive"
            events.append(Event(name, peer, x.numel(), x.nbytes))
        return start(messages)

    def announcing(call: str, x: torch.Tensor) -> None:
        events.append(Event(call, None, x.numel(), x.nbytes))
        announce(call, x)

    vars(group).update(_start=starting, announce=announcing)
    try:
        yield events
    finally:
        del vars(group)["_start"], vars(group)["announce"]


def paired(
    group: Group, mine: Callable[[], Any], listing: Callable[[], Any], pairs: int = 7
) -> tuple[float, float, float]:
    """Medians (s) of an answer and of what it is compared with, and of their ratio, by turns."""
    taken: list[tuple[float, float]] = []
    for _ in range(pairs + 1):
        seconds = []
        for work in (mine, listing):
            group.barrier()
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
        taken.append((seconds[0], seconds[1]))
    ours, theirs = zip(*taken[1:], strict=True)  # the first pair warms up
    ratio = statistics.median(b / a for a, b in taken[1:])
    return statistics.median(ours), statistics.median(theirs), ratio


def told(times: tuple[float, float, float], listing: str) -> str:
    """What `paired` found, in words."""
    ours, theirs, ratio = times
    return (
        f"Timed by turns on rank 0: {ours * 1e3:.2g} ms, and {listing} {theirs * 1e3:.2g} ms, "
        f"a median ratio of {ratio:.2g}"
    )


def rounds(of_ranks: list[list[Event]]) -> int:
    """How many rounds the messages take, if a rank sends one a round and all take equally long.

    `of_ranks` are the ranks' events; their sends and receives must fit each other.
    """
    left = [[e for e in events if e.peer is not None] for events in of_ranks]
    clock = [0] * len(left)
    arrive: dict[tuple[int, int], list[int]] = {}  # rounds in which messages from, to come
    last = 0
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(left):
            while events:
                peer = events[0].peer
                assert peer is not None
                if events[0].name == "send":
                    clock[rank] += 1
                    arrive.setdefault((rank, peer), []).append(clock[rank])
                elif queue := arrive.get((peer, rank)):
                    clock[rank] = max(clock[rank], queue.pop(0))
                else:
                    break
                last = max(last, clock[rank])
                del events[0]
                moved = True
    return last
