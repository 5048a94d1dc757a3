"""Find the rank and the tensor in which a NaN or an infinity appeared first, with one number."""

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import normal

HINTS = [
    "Look before any all-reduce: afterward, every rank has the NaN. `x.isfinite().all()` finds "
    "NaNs and infinities. Don't test a sum, because finite numbers can add up to an infinity.",
    "Each rank finds its own smallest index, or len(tensors) if all its tensors are finite. The "
    "smallest of these numbers is the index to return.",
    "To get the rank with the same all-reduce, send index · N + rank with the operation "
    '"min". divmod(…, N) gives both numbers back.',
]
LOOK = {  # words of a message → the name in the answer to look at
    "an infinity isn't finite": "isnan",
    "are all finite": "sum|mean|norm",
}
LARGE = 3e38  # finite in fp32, but two of them add up to an infinity
Bad = dict[tuple[int, int], float]  # (index, rank) → the value that appears there


class Case(NamedTuple):
    tensors: int
    bad: Bad
    seed: int = 0

    def of_rank(self, rank: int) -> list[torch.Tensor]:
        made = [normal(3 + i % 4, seed=(rank, i, self.seed)).float() for i in range(self.tensors)]
        made[1][:2] = LARGE
        for (index, of), value in self.bad.items():
            if of == rank:
                made[index][-1] = value
        return made


CASES: list[tuple[int, Case]] = [
    (2, Case(6, {})),
    (2, Case(6, {(3, 1): torch.nan})),
    (2, Case(8, {(2, 0): torch.inf, (4, 1): torch.nan, (6, 0): torch.inf})),
    (3, Case(8, {(4, 2): torch.nan, (5, 0): torch.nan, (6, 1): torch.nan})),
    (3, Case(8, {(2, 2): torch.nan, (2, 1): -torch.inf, (6, 0): torch.nan})),
    (2, Case(6, {(0, 0): torch.nan, (4, 1): torch.nan})),
]


def drawn(draw: Draw) -> tuple[int, Case]:
    ranks, tensors, bad = 3, draw(20, 40), Bad()
    for _ in range(draw(1, 4)):
        bad[draw(0, tensors - 1), draw(0, ranks - 1)] = (torch.nan, torch.inf)[draw(0, 1)]
    return ranks, Case(tensors, bad, draw(1, 10**6))


def run(group: Group, answer: Callable[..., Any], case: Case) -> tuple[Any, int]:
    rings = RingGroup(group)
    rings.trace = trace = Trace(group.rank)
    return answer(rings, case.of_rank(group.rank)), trace.sent


def check(find: Callable[..., Any], *, draw: Draw) -> str:
    sends = []
    for ranks, case in chain(CASES, (drawn(draw) for _ in range(3))):
        results = on_ranks(run, find, case, ranks=ranks)
        answers = [None if found is None else tuple(map(int, found)) for found, _ in results]
        right = min(case.bad, default=None)
        if answers != [right] * ranks:
            raise Wrong(why(case, answers, right))
        sends += [(sent, case.tensors) for _, sent in results]
    most, tensors = max(sends)
    if most > 64:
        raise Wrong(
            f"The answers are right, but with {tensors} tensors, a rank sends {most} bytes. One "
            "number per rank is enough"
        )
    return "Right: the first tensor that isn't finite and its rank, for one number per rank."


def why(case: Case, answers: list[tuple[int, ...] | None], right: tuple[int, int] | None) -> str:
    """What is wrong with the ranks' answers."""
    found, bad = answers[0], case.bad
    listed = ", ".join(f"tensor {i} on rank {r} ({value})" for (i, r), value in bad.items())
    here = f"{len(answers)} ranks, not finite: {listed or 'nothing'}. "
    own = [min((key for key in bad if key[1] == r), default=None) for r in range(len(answers))]
    if answers == own:
        return f"{here}Each rank looks only at its own tensors: they return {answers}"
    if answers != [found] * len(answers):
        return f"{here}The ranks return different answers, {answers}, not all {right}"
    if found is None and right is not None:
        return f"{here}All ranks return None, as if everything were finite"
    here += f"All ranks return {found}, not {right}"
    if right is None:
        return f"{here}: the tensors are all finite, although their sums aren't"
    if found == min((key for key, value in bad.items() if value != value), default=None):
        return f"{here}: an infinity isn't finite, either"
    if found == min(bad, key=lambda key: (key[1], key[0])):
        return f"{here}: that is the lowest rank, but a different one had it in an earlier tensor"
    if found == max(bad):
        return f"{here}: that is the last one, not the first"
    if found is not None and found not in bad and found[0] == right[0]:
        return f"{here}: after an all-reduce, every rank has the NaN, so look before it"
    return here
