"""Band of a planned time: how long four of five published runs took, in units of the plan.

    time of a run = planned time · (1 + error),  error = planned speed / published speed − 1

The errors are those of published runs that no curve was fitted to, though two constants of `speed`
were fitted to some of them. Rows marked "never" aren't among them, so that a test can count how
many of these a band covers. Of n errors, a band leaves out the
⌊(n + 1)/10⌋ − 1 smallest and as many of the largest: then a new run of the same kind is inside with
a probability of at least 80 % (Vovk et al. 2005, conformal prediction). That takes nine runs. If a
strategy has fewer on this generation of GPUs, its band is that of the whole generation, extended to
all errors of these few. If a GPU has no measured curve, the band is extended to the errors of such
GPUs. If sequences are longer than those of all other runs, it is extended to the errors of the few
dozen with long ones. If the speed was measured on few GPUs, the errors are those of plans for many
GPUs that began with such a speed.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from distributed.planner.hardware import GPUS, Gpu
from distributed.planner.published import FITTED, HELD_OUT, LONG, NEVER, longest, rows
from distributed.planner.speed import curve_name, has_curve
from distributed.planner.validation import Run, predict, runs, scaling
from distributed.runtime.script import run_script

ENOUGH = 9  # runs: with fewer, even the smallest and the largest error promise less than 80%


class Band(NamedTuple):
    """From `low` to `high` times the planned time; `of_runs` runs of this kind, in words."""

    low: float
    high: float
    of_runs: int
    kind: str
    also: str = ""  # runs of a different kind whose errors it includes

    def of(self, planned: float) -> tuple[float, float]:
        """Shortest and longest time (in the unit of `planned`)."""
        return self.low * planned, self.high * planned

    def covers(self, error: float) -> bool:
        return self.low <= 1 + error <= self.high

    def extended(self, errors: Iterable[float], kind: str) -> "Band":
        """This band and these few errors."""
        few = [1 + error for error in errors]
        return Band(min([self.low, *few]), max([self.high, *few]), len(few), kind)

    def in_words(self) -> str:
        """What the band is made of."""
        ends = f"between {difference(self.low)} and {difference(self.high)} time than planned"
        also = f", with those {self.also}" if self.also else ""
        ends += ", on links as fast as stated"
        if self.of_runs >= ENOUGH:
            return f"80% of {self.of_runs} published runs {self.kind}{also} took {ends}"
        few = f"only {self.of_runs}" if self.of_runs else "none"
        are = "is" if self.of_runs < 2 else "are"
        return f"comparable published runs{also} took {ends}; {few} of them {are} {self.kind}"


def difference(factor: float) -> str:
    """How much more or less time than planned."""
    return f"{abs(factor - 1):.0%} {'more' if factor > 1 else 'less'}"


def four_of_five(errors: Iterable[float], kind: str) -> Band:
    """The band of at least nine errors."""
    known = sorted(errors)
    k = (len(known) + 1) // 10
    return Band(1 + known[k - 1], 1 + known[-k], len(known), kind)


@cache
def known() -> tuple[Run, ...]:
    """Published runs that bands are made of."""
    uses = {*HELD_OUT, FITTED} - {NEVER}
    return tuple(predict(row) for row in rows("tokens/s/GPU") if row["use"] in uses)


@cache
def pairs() -> tuple[tuple[str, float], ...]:
    """Strategy and error of runs on many GPUs, planned from the speed of the same run on few."""
    seen = [run for run in runs() if run.row["use"] != NEVER]
    return tuple((many.row["strategy"], error) for many, _, error in scaling(seen))


@cache
def long_runs(curve: str) -> tuple[Run, ...]:
    """Published runs with long sequences on this generation of GPUs."""
    found = (row for row in rows("tokens/s/GPU") if row["use"] == LONG)
    return tuple(predict(row) for row in found if curve_name(GPUS[row["gpu"]]) == curve)


@cache
def band_of(gpu: Gpu, strategy: str, is_speed_measured: bool = False, context: int = 0) -> Band:
    """The band of this strategy's time on these GPUs, or with a speed that the user measured.

    With a `context` above that of all other runs, it includes the errors of those with long ones.
    """
    long = long_runs(curve_name(gpu))
    if context > longest(long=False) and not is_speed_measured:
        found = band_of(gpu, strategy)
        factors = [1 + run.error for run in long]
        low, high = min(found.low, *factors), max(found.high, *factors)
        return found._replace(
            low=low, high=high, also=f"of {len(long)} with more than {longest(long=False):,} tokens"
        )
    if is_speed_measured:
        errors = [error for name, error in pairs() if name == strategy]
        everything = [error for _, error in pairs()]
        return most_alike(everything, errors, "planned from a run on few GPUs", strategy)
    curve = curve_name(gpu)
    generation = [
        run
        for run in known()
        if has_curve(GPUS[run.row["gpu"]]) and curve_name(GPUS[run.row["gpu"]]) == curve
    ]
    everything = [run.error for run in generation]
    errors = [run.error for run in generation if run.row["strategy"] == strategy]
    found = most_alike(everything, errors, f"on {curve.upper()}s", strategy)
    if has_curve(gpu):
        return found
    others = [run.error for run in known() if not has_curve(GPUS[run.row["gpu"]])]
    return found.extended(others, "on GPUs without a measured curve")


def most_alike(everything: list[float], errors: list[float], where: str, strategy: str) -> Band:
    """The band of the strategy's errors if they are enough, or else of `everything` and them."""
    kind = f"of {strategy} {where}"
    if len(errors) >= ENOUGH:
        return four_of_five(errors, kind)
    return four_of_five(everything, where).extended(errors, kind)


def main() -> None:
    """Print bands of each strategy on four GPUs, and how many runs they cover."""
    for name in ("a100", "h100", "b200", "mi300x"):
        for strategy in ("DDP", "ZeRO-1", "ZeRO-2", "HSDP", "ZeRO-3"):
            band = band_of(GPUS[name], strategy)
            print(f"{name:7}{strategy:7} {band.in_words()}")
            assert band.low < 1 < band.high
    for strategy in ("ZeRO-1", "ZeRO-3"):
        print(f"--speed {strategy} {band_of(GPUS['h100'], strategy, True).in_words()}")
    never = [predict(row) for row in rows("tokens/s/GPU") if row["use"] == NEVER]
    inside = sum(
        band_of(GPUS[run.row["gpu"]], run.row["strategy"]).covers(run.error) for run in never
    )
    print(f"{inside} of {len(never)} runs that nothing was ever fitted to are inside")


if __name__ == "__main__":
    run_script(main)
