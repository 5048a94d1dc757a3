"""Sampler: which rank reads which examples. None twice, none left out, a new order each epoch."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from playground.exercises.check import Draw, Wrong

HINTS = [
    "First an order of all examples that every rank finds by itself and that is the same for all; "
    "then this rank's share of it.",
    "The order depends on seed and epoch alone. Draw it from a generator of your own: the global "
    "random numbers differ between ranks, and others use them.",
    "`order = np.random.default_rng([seed, epoch]).permutation(length)`, and every N-th from the "
    "place `rank` on: `order[rank::ranks]`. Nothing is filled up.",
]
LOOK = {  # words of a message → name in the answer to look at
    "global random numbers": "seed|manual_seed|shuffle|permutation|randperm",
    "the (epoch|seed) does not count|must not depend on the rank": "default_rng|.*seed|Random",
}
CASES = [(16, 4), (10, 4), (7, 3), (2, 4), (1000, 8)]
Answer = Callable[[int, int, int, int, int], Any]


def share(answer: Answer, *arguments: int, world: int = 0) -> list[int]:
    """Indices that a rank reads. Its global random state differs from that of the other ranks."""
    rank = arguments[1] + 100 * world
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    before = state()
    answered = answer(*arguments)
    said = f"length={arguments[0]}, rank {arguments[1]} of {arguments[2]}: "
    if answered is None:
        raise Wrong(f"{said}the function returns nothing (None)")
    found = [int(number) for number in answered]
    # Drawing from the global generators changes their state, and each rank gets different numbers.
    # Seeding them gives all ranks the same numbers. The next check distinguishes the two.
    if state() != before and [int(number) for number in answer(*arguments)] == found:
        raise Wrong(
            f"{said}the global random numbers are seeded: from here on every rank has the same "
            "dropout and the same noise. Use a generator of your own"
        )
    return found


def state() -> tuple[Any, ...]:
    """State of the global random number generators, in a form that can be compared."""
    of_numpy: Any = np.random.get_state()
    return random.getstate(), of_numpy[1].tobytes(), of_numpy[2], torch.get_rng_state().tolist()


def check(indices: Answer, *, draw: Draw) -> str:
    globals_before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for length, ranks in CASES:
            check_epoch(indices, length, ranks)
        check_epochs(indices, *CASES[-1])
        for _ in range(5):
            check_epoch(indices, draw(1, 200), draw(1, 9))
    finally:
        random.setstate(globals_before[0])
        np.random.set_state(globals_before[1])
        torch.set_rng_state(globals_before[2])
    return (
        "Right: each example once an epoch, another order each time, without a word between ranks."
    )


def check_epoch(indices: Answer, length: int, ranks: int) -> None:
    said = f"{length} examples, {ranks} ranks: "
    shares = [share(indices, length, rank, ranks, 5, 0) for rank in range(ranks)]
    for rank, numbers in enumerate(shares):
        if share(indices, length, rank, ranks, 5, 0, world=1) != numbers:
            raise Wrong(
                f"{said}rank {rank} reads other examples when it is asked again: the order hangs "
                "on the global random numbers, and those differ from rank to rank"
            )
        if outside := [n for n in numbers if not 0 <= n < length]:
            raise Wrong(
                f"{said}rank {rank} reads example {outside[0]}: there are 0 to {length - 1}"
            )
    often = Counter(number for numbers in shares for number in numbers)
    twice = [number for number in sorted(often) if often[number] > 1]
    missing = [number for number in range(length) if not often[number]]
    sizes = [len(numbers) for numbers in shares]
    if twice:
        readers = [rank for rank, numbers in enumerate(shares) if twice[0] in numbers]
        by = f"by rank {readers[0]}" if len(readers) == 1 else f"by the ranks {listed(readers)}"
        who = f"{said}example {twice[0]} is read {often[twice[0]]} times, {by}"
        if not missing and len(set(sizes)) == 1:
            why = f"{sum(sizes)} are read: filled up, so that all shares are equal"
        elif missing:
            why = (
                f"{len(missing)} examples are read by nobody: does the order differ from rank to "
                "rank? It must not depend on the rank"
            )
        else:
            why = "do shares overlap?"
        raise Wrong(f"{who}; {why}")
    if missing:
        raise Wrong(
            f"{said}nobody reads example {missing[0]}, and {len(missing)} are left out in all"
        )
    if max(sizes) - min(sizes) > 1:
        raise Wrong(f"{said}shares of {sizes} examples: they may differ by one at most")


def check_epochs(indices: Answer, length: int, ranks: int) -> None:
    said = f"{length} examples, {ranks} ranks: "

    def of_all(seed: int, epoch: int) -> list[list[int]]:
        return [share(indices, length, rank, ranks, seed, epoch) for rank in range(ranks)]

    first, second = of_all(5, 0), of_all(5, 1)
    if all(numbers == sorted(numbers) for numbers in first):
        raise Wrong(f"{said}each rank reads its examples in their own order: nothing is shuffled")
    if first == second:
        raise Wrong(f"{said}epochs 0 and 1 have the same order: the epoch does not count")
    for rank in range(ranks):
        if set(first[rank]) == set(second[rank]):
            raise Wrong(
                f"{said}rank {rank} reads the same examples in every epoch, only in another order: "
                "shuffle all examples, then cut"
            )
    other = of_all(6, 0)
    if first == other:
        raise Wrong(f"{said}seeds 5 and 6 give the same order: the seed does not count")
    for what, shares in (("epochs 0 and 1", second), ("seeds 5 and 6", other)):
        same = len(neighbors(first) & neighbors(shares))
        if same > length // 10:  # about one would be the same by chance
            raise Wrong(
                f"{said}{what}: {same} examples follow the same example as before, or precede it. "
                "So the order is rotated or reversed, and not shuffled again"
            )


def neighbors(shares: list[list[int]]) -> set[frozenset[int]]:
    """Pairs of examples that a rank reads one after the other."""
    return {frozenset(pair) for numbers in shares for pair in pairwise(numbers)}


def listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
