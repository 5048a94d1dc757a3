"""A training loop that hangs for three reasons: a log, an early stop, and unequal batches."""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from playground.exercises.check import Draw, Wrong, on_ranks

HINTS = [
    "The verdict says on which line each rank waits. A collective ends when *every* rank has "
    "called it: which rank did not come, and which `if` or `for` kept it away?",
    "A condition in front of a collective must be the same on all ranks. `group.rank == 0` is not: "
    "let all ranks average, and one of them write.",
    "`loss < good` compares a rank's own loss. The mean over ranks is the same everywhere, so "
    "compare that, in every step.",
    'How many steps can all ranks do? Each knows its own number: all_reduce(…, "min"), before the '
    "loop.",
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
    """w, the log and the number of steps, with all ranks' means made in one place."""
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
        "equally many batches, and no early stop": (even, 0.0),
        "unequally many batches, and no early stop": (more, 0.0),
        "unequally many batches, and an early stop": (more, -1.0),
    }
    found = []
    for said, (counts, good) in drawn.items():
        batches = draw_batches(draw, counts, draw(6, 9))
        if good < 0:  # to be reached in the fourth step
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
        where = f"Three ranks, {said}: it ends, but "
        for rank, result in enumerate(results):
            if result is None:
                raise Wrong(f"{where}rank {rank} does not return (w, log)")
            found, of_rank = result
            if rank and of_rank:
                raise Wrong(f"{where}rank {rank} has a log, which only rank 0 writes")
            if not abs(found - w) <= 1e-9:  # nan too
                raise Wrong(
                    f"{where}w is {found:.6f} on rank {rank}, and {w:.6f} after {done} steps on "
                    "one device: do all ranks do equally many steps, and average every gradient?"
                )
        of_first = results[0][1]
        if len(of_first) != len(log):
            raise Wrong(f"{where}the log of rank 0 has {len(of_first)} losses, and not {len(log)}")
        for i, (found, wanted) in enumerate(zip(of_first, log, strict=True)):
            if not abs(found - wanted) <= 1e-9:
                raise Wrong(
                    f"{where}log[{i}] is {found:.6f}, and the mean over ranks is {wanted:.6f}"
                )
    return "Right: every rank makes the same calls, whatever it has and whoever writes the log."
