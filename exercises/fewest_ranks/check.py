"""The fewest ranks for a deadline: beyond the noise scale more ranks save few steps."""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

from playground.exercises.check import Draw, Wrong

HINTS = [
    "With a batch of B examples it takes least · (1 + noise / B) steps. One measurement gives the "
    "least: steps / (1 + noise / batch).",
    "The deadline allows deadline // seconds steps. If that isn't more than the least, no "
    "batch is large enough.",
    "Solve least · (1 + noise / B) = allowed for B, and divide by the rows of a rank. Round up, "
    "because with one rank too few you miss the deadline.",
]


class Case(NamedTuple):
    rows: int
    noise: float
    batch: int
    steps: int
    seconds: float
    deadline: float

    def steps_of(self, ranks: int) -> float:
        least = self.steps / (1 + self.noise / self.batch)
        return least * (1 + self.noise / (ranks * self.rows))

    def in_time(self, ranks: int) -> bool:
        return self.steps_of(ranks) * self.seconds <= self.deadline * (1 + 1e-12)


CASES = [
    Case(16, 2048, 128, 34000, 0.25, 2000),  # an eighth of the noise scale and less
    Case(8, 512, 512, 10000, 0.5, 3100),  # near it: twice the ranks save a quarter
    Case(8, 512, 512, 10000, 0.5, 2400),  # beyond: half of the steps are the least
    Case(32, 100, 64, 4100, 1.0, 100000),  # one rank is enough
    Case(4, 90, 32, 41, 0.5, 10),  # so few steps that one more or less counts
]


def drawn(draw: Draw, possible: bool) -> Case:
    """Whole numbers of allowed steps, away from where rounding decides."""
    rows, noise, batch = draw(2, 64), draw(100, 5000), draw(16, 2000)
    steps, seconds = draw(5000, 50000), draw(1, 8) / 8
    least = steps / (1 + noise / batch)
    share = draw(110, 500) / 100 if possible else draw(50, 95) / 100
    return Case(rows, noise, batch, steps, seconds, math.ceil(share * least) * seconds)


def fewest(case: Case) -> int | None:
    """By trying, and not by a formula: doubled until it is in time, then halved."""
    high = 1
    while not case.in_time(high):
        high *= 2
        if high > 2**40:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if case.in_time(middle) else (middle, high)
    return high


def check(fewest_ranks: Callable[..., Any], *, draw: Draw) -> str:
    for case in [*CASES, *(drawn(draw, possible=i % 3 > 0) for i in range(12))]:
        found, right = fewest_ranks(*case), fewest(case)
        if found != right and not as_good(case, found, right):
            raise Wrong(why(case, found, right))
    most = CASES[0]
    return (
        "Right: for five runs and twelve more. In the first, "
        f"{fewest(most)} ranks are in time, where dividing the steps by the ranks says "
        f"{by_division(most)}."
    )


def as_good(case: Case, found: Any, right: int | None) -> bool:
    """Where a rank more or less is a matter of the last digit, either is right."""
    if right is None or not isinstance(found, Integral) or abs(found - right) != 1 or found < 1:
        return False
    needs = case.steps_of(min(found, right)) * case.seconds
    return math.isclose(needs, case.deadline, rel_tol=1e-9)


def by_division(case: Case) -> int:
    return max(1, math.ceil(case.batch * case.steps * case.seconds / case.deadline / case.rows))


def why(case: Case, found: Any, right: int | None) -> str:
    said = (
        f"{case.rows} rows a rank, noise scale {case.noise:g}, {case.steps:,} steps of "
        f"{case.seconds:g} s with a batch of {case.batch}, deadline {case.deadline:,.6g} s: "
    )
    if found is not None and (isinstance(found, bool) or not isinstance(found, Integral)):
        return f"{said}{found!r} is no number of ranks: return an int, or None"
    if right is None:
        least = case.steps / (1 + case.noise / case.batch)
        return (
            f"{said}no number of ranks is enough, because even an infinite batch takes "
            f"{least:,.0f} steps, and {case.deadline / case.seconds:,.0f} are allowed: not {found}"
        )
    if found is None:
        said += f"{right} ranks are in time, and you say that none are"
        if case.deadline // case.seconds <= case.steps:
            said += ". It looks as if the steps that were measured are taken for the least"
        return said
    said += f"{right} ranks are in time, and not {found}. "
    if found == right - 1:
        return f"{said}Yours are {late(case, found)} too late, and one more rank would be in time"
    if found == by_division(case):
        return f"{said}Steps are taken to fall as the batch grows, however large it is"
    allowed = case.deadline // case.seconds
    least = case.steps / (1 + case.noise / case.batch)
    needed = case.noise / (allowed / least - 1)
    if found == math.ceil(needed):
        return f"{said}That is the batch, in examples, and each rank has {case.rows}"
    if allowed > case.steps and found == max(
        1, math.ceil(case.noise / (allowed / case.steps - 1) / case.rows)
    ):
        return f"{said}It looks as if the steps that were measured are taken for the least"
    return f"{said}With {found} it takes {case.steps_of(max(1, found)):,.0f} steps"


def late(case: Case, ranks: int) -> str:
    """By how much, in seconds; with no rank at all nothing is done."""
    if ranks < 1:
        return "for ever"
    return f"{case.steps_of(ranks) * case.seconds - case.deadline:,.3g} s"
