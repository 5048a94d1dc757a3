"""Exercise: shards of a batch that N doesn't divide, and the mean over all its rows."""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, on_ranks

HINTS = [
    "Shard r begins where shard r − 1 ends. So you need N + 1 cuts: the first is 0 and the last is "
    "n.",
    "Cut at n · r // N. The distance between two neighboring cuts is then n/N, rounded up or down.",
    "The mean over all rows is Σ loss · rows / Σ rows, and one all-reduce can add up both. A rank "
    "without rows has the loss nan, and nan · 0 is nan, so it has to contribute 0 instead.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "each rank counts the same": "all_reduce",
    "is in the shards of": "shard_rows",
    "divided by this rank's rows": "all_reduce",
}
SHARDS = [(12, 4), (10, 4), (7, 3), (2, 4), (0, 2), (101, 8)]
Cases = dict[int, list[tuple[tuple[float, int], ...]]]  # ranks → (loss, rows) of each rank
LOSSES: Cases = {
    3: [
        ((2.0, 4), (3.0, 4), (4.0, 4)),
        ((2.0, 6), (5.0, 1), (8.0, 2)),
        ((1.0, 1), (0.5, 2), (7.0, 1)),
    ],
    4: [((2.0, 3), (4.0, 5), (torch.nan, 0), (1.0, 2))],
}


def run(group: Group, answer: Callable[..., Any], cases: list[Any]) -> list[Any]:
    return [answer(group, *of_ranks[group.rank]) for of_ranks in cases]


def check(shard_rows: Callable[..., Any], weighted_mean: Callable[..., Any], *, draw: Draw) -> str:
    check_shares(shard_rows, SHARDS)
    check_means(weighted_mean, LOSSES)
    check_shares(shard_rows, [(draw(0, 300), draw(1, 20)) for _ in range(20)])
    ranks = draw(2, 5)
    cases = [tuple((draw(1, 64) / 8, draw(1, 9)) for _ in range(ranks)) for _ in range(5)]
    check_means(weighted_mean, {ranks: cases})
    return "Right: shards of equal size, give or take a row, and the mean over all rows."


def check_shares(shard_rows: Callable[..., Any], cases: list[tuple[int, int]]) -> None:
    for n, ranks in cases:
        check_shards(
            f"{n} rows, {ranks} ranks: ", n, [shard_rows(n, r, ranks) for r in range(ranks)]
        )


def check_means(weighted_mean: Callable[..., Any], of_ranks: Cases) -> None:
    for ranks, cases in of_ranks.items():
        for rank, means in enumerate(on_ranks(run, weighted_mean, cases, ranks=ranks)):
            for pairs, found in zip(cases, means, strict=True):
                check_mean(rank, pairs, found)


def check_shards(said: str, n: int, shards: list[Any]) -> None:
    for rank, shard in enumerate(shards):
        if not (isinstance(shard, tuple | list) and len(shard) == 2):
            raise Wrong(f"{said}rank {rank} gets {shard!r}: return two numbers, start and end")
        if any(isinstance(place, float) for place in shard):
            raise Wrong(
                f"{said}rank {rank} gets the rows from {shard[0]:g} up to {shard[1]:g}: "
                "there is no part of a row. Divide with //"
            )
        if not 0 <= shard[0] <= shard[1] <= n:
            raise Wrong(
                f"{said}rank {rank} gets the rows from {shard[0]} up to {shard[1]}; they should "
                f"lie in 0 to {n}, start first"
            )
    owners = [[r for r, (a, b) in enumerate(shards) if a <= row < b] for row in range(n)]
    for row, ranks in enumerate(owners):
        if not ranks:
            lost = sum(not owner for owner in owners)
            raise Wrong(f"{said}row {row} is in no shard; {lost} of {n} rows are lost")
        if len(ranks) > 1:
            raise Wrong(f"{said}row {row} is in the shards of rank {ranks[0]} and of {ranks[1]}")
    sizes = [b - a for a, b in shards]
    if max(sizes) - min(sizes) > 1:
        raise Wrong(
            f"{said}shards of {', '.join(map(str, sizes))} rows: they may differ by one at most. "
            "Every rank waits for the one with the most rows"
        )


def check_mean(rank: int, pairs: Any, found: Any) -> None:
    losses, rows = zip(*pairs, strict=True)
    given = [(loss, count) for loss, count in pairs if count]
    total = sum(loss * count for loss, count in given)
    right = total / sum(rows)
    said = (
        f"losses {', '.join(f'{loss:g}' for loss in losses)} of {', '.join(map(str, rows))} rows: "
    )
    if found is None:
        raise Wrong(f"{said}weighted_mean returns nothing (None)")
    found = float(found)
    if abs(found - right) < 1e-5:
        return
    said += f"the mean on rank {rank} is {found:g}, and should be {right:g}: "
    mistakes = {
        "it is this rank's own loss: nothing was added up": losses[rank],
        "each rank counts the same, however many rows it has": sum(losses) / len(losses),
        "the sum is not divided by the rows of all ranks": total,
        "the sum over all ranks is divided by this rank's rows": total / (rows[rank] or 1),
        "the sum is divided by the number of ranks, and not by the rows": total / len(rows),
        "it is divided by the ranks, too": right / len(rows),
    }
    if found != found:
        raise Wrong(f"{said}the loss of a rank without rows is nan, and so is nan · 0")
    for mistake, wrong in mistakes.items():
        if abs(found - wrong) < 1e-5:
            raise Wrong(said + mistake)
    raise Wrong(f"{said}Σ loss · rows / Σ rows, both sums over the ranks")
