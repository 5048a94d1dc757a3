"""Broadcast by a binomial tree: from any root, to any number of ranks, in ⌈log₂ N⌉ rounds."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.watch import Event, rounds, watched

HINTS = [
    "In each round, every rank that has the array sends it to one that doesn't. So the number of "
    "ranks that have it doubles: 1, 2, 4, …",
    "Count ranks from the root: position = (rank − root) mod N. Then the root has position 0.",
    "Position p receives from p without its lowest bit, p & (p − 1), and sends to p + bit for "
    "every power of two `bit` below that lowest bit, if p + bit < N.",
    "Send to the largest `bit` first, because that rank has the most ranks below it. Position 0 "
    "has no lowest bit, so it sends to all powers of two below N.",
]


def run(group: Group, answer: Callable[..., Any], n: int) -> list[tuple[list, list[Event]]]:
    """For each root, what this rank has in the end, and did; rank r begins with r·100 + i."""
    results = []
    for root in range(group.size):
        x = torch.arange(n, dtype=torch.float64) + 100 * group.rank
        with watched(group) as events:
            answer(group, x, root)
        results.append((x.tolist(), events))
        group.barrier()
    return results


def check(tree_broadcast: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, n in chain(((3, 4), (4, 1), (5, 3)), ((draw(2, 5), draw(1, 20)) for _ in range(2))):
        results = on_ranks(run, tree_broadcast, n, ranks=ranks)
        need = (ranks - 1).bit_length()
        for root in range(ranks):
            said = f"{ranks} ranks, root {root}: "
            for rank in range(ranks):
                x = results[rank][root][0]
                for i, number in enumerate(x):
                    if number != 100 * root + i:
                        whose = int(number // 100)
                        has = "still its own number" if whose == rank else f"rank {whose}'s"
                        raise Wrong(
                            f"{said}x[{i}] on rank {rank} is {has} ({number:g}), not rank "
                            f"{root}'s ({100 * root + i})"
                        )
            every = [results[rank][root][1] for rank in range(ranks)]
            for rank, events in enumerate(every):
                if used := [e.name for e in events if e.peer is None]:
                    raise Wrong(f"{said}rank {rank} calls {used[0]}: use messages")
                received = sum(e.name == "receive" for e in events)
                if received != (right := int(rank != root)):
                    raise Wrong(
                        f"{said}the values are right, but rank {rank} receives {received} "
                        f"messages, and needs {right}"
                    )
                sent = [e for e in events if e.name == "send"]
                if any(e.elements != n for e in sent):
                    raise Wrong(
                        f"{said}rank {rank} sends {sent[0].elements} of {n} elements at once"
                    )
                if len(sent) > need:
                    raise Wrong(
                        f"{said}the values are right, but rank {rank} sends {len(sent)} messages, "
                        f"one after the other; in a tree no rank sends more than ⌈log₂ N⌉ = {need}"
                    )
            if (took := rounds(every)) > need:
                most = max(sum(e.name == "send" for e in events) for events in every)
                why = (
                    "each rank passes them on to one other: that is a chain"
                    if most == 1
                    else "whoever has most ranks below it must be sent to first"
                )
                raise Wrong(
                    f"{said}the values are right, but they need {took} rounds and not ⌈log₂ N⌉ = "
                    f"{need}: {why}"
                )
    return "Right: from every root to 3, 4, 5 and other numbers of ranks in ⌈log₂ N⌉ rounds."
