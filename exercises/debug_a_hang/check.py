"""A training loop that hangs for three reasons: its log, its early stop, and unequal batches."""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, on_ranks

HINTS = [
    "The verdict says which line each rank is waiting in. A collective ends when every rank has "
    "called it. Which rank hasn't, and which `if` or `for` made it skip the call?",
    "A condition around a collective must have the same value on all ranks. `group.rank == 0` "
    "doesn't. Let all ranks average the loss, and only rank 0 log it.",
    "`loss < good` compares each rank's own loss. The mean over the ranks is the same everywhere, "
    "so compute it in every step, and compare that.",
    "How many steps can all ranks do? Each rank knows only its own number, so find the smallest "
    'with all_reduce(…, "min") before the loop.',
]
Batches = list[list[torch.Tensor]]  # of each rank


def draw_batches(draw: Draw, counts: list[int], centre: int) -> Batches:
    return [
        [
            torch.tensor([centre + draw(-9, 9) / 3 for _ in range(4)], dtype=torch.float64)
            for _ in range(count)
        ]
        for count in counts
    ]


def one_device(batches: Batches, good: float) -> tuple[float, list[float], int]:
    """w, the log, and the number of steps, when one device computes all ranks' means."""
    w, log, done = torch.zeros(1, dtype=torch.float64), [], 0
    for step, rows in enumerate(zip(*batches, strict=False)):
        losses = [(w - x).square().mean() for x in rows]
        gradients = [2 * (w - x.mean()) for x in rows]
        w = w - 0.1 * sum(gradients) / len(rows)
        mean = (sum(losses) / len(rows)).item()
        done += 1
        if step % 2 == 0:
            log.append(mean)
        if mean < good:
            break
    return w.item(), log, done


def run(group: Group, answer: Callable[..., Any], batches: Batches, good: float) -> Any:
    mine = [x.clone() for x in batches[group.rank]]
    result = answer(group, mine, good)
    if not isinstance(result, tuple | list) or len(result) != 2:
        return None
    w, log = result
    return float(w), [float(loss) for loss in log]


def cases(draw: Draw) -> list[tuple[str, Batches, float]]:
    few = draw(5, 7)
    even, more = [few, few, few], [few + draw(1, 2), few, few + draw(2, 4)]
    drawn = {
        "the same number of batches, no early stop": (even, 0.0),
        "different numbers of batches, no early stop": (more, 0.0),
        "different numbers of batches, and an early stop": (more, -1.0),
    }
    found = []
    for said, (counts, good) in drawn.items():
        batches = draw_batches(draw, counts, draw(6, 9))
        if good < 0:  # so that the fourth step reaches it
            good = last_mean(batches, 4) * (1 + 1e-9)
        found.append((said, batches, good))
    return found


def last_mean(batches: Batches, steps: int) -> float:
    """The mean loss in that step, the first being 1."""
    w, _, _ = one_device([rows[: steps - 1] for rows in batches], 0.0)
    losses = [(w - rows[steps - 1]).square().mean().item() for rows in batches]
    return sum(losses) / len(losses)


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    for said, batches, good in cases(draw):
        w, log, done = one_device(batches, good)
        results = on_ranks(run, train, batches, good, ranks=3, timeout=8.0)
        where = f"Three ranks, {said}: training ends. But "
        for rank, result in enumerate(results):
            if result is None:
                raise Wrong(f"{where}rank {rank} doesn't return (w, log)")
            found, of_rank = result
            if rank and of_rank:
                raise Wrong(f"{where}rank {rank} has a log, and only rank 0 should write one")
            if not abs(found - w) <= 1e-9:  # nan too
                raise Wrong(
                    f"{where}w is {found:.6f} on rank {rank} instead of {w:.6f}, the result of "
                    f"{done} steps on one device. Do all ranks take equally many steps and average "
                    "all gradients?"
                )
        of_first = results[0][1]
        if len(of_first) != len(log):
            raise Wrong(f"{where}rank 0's log has {len(of_first)} losses, not {len(log)}")
        for i, (found, wanted) in enumerate(zip(of_first, log, strict=True)):
            if not abs(found - wanted) <= 1e-9:
                raise Wrong(
                    f"{where}log[{i}] is {found:.6f} instead of {wanted:.6f}, the mean over the "
                    "ranks"
                )
    return "Right: all ranks make the same calls, whatever batches they have."
