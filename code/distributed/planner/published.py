"""Published measurements, each with its source and with the inputs that a prediction needs.

`published.csv` holds all rows: a value, its unit, source and section. This module uses the rows
that say how well DDP scales and how often a large run fails. Compute time comes from the same
source's time on one device or one host. Nothing is tuned to a case: latencies are the same in all
cases, and links have the bandwidth that their vendors state.
"""

import csv
import statistics
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.runtime.script import run_script
from distributed.scaling import BUCKET, step

# `use` of a speed that no constant depends on. A constant may be fitted to "held out" rows later,
# which are then "fitted", but never to "never" rows, which tell whether that constant helps
NEVER, FITTED = "never", "fitted"
HELD_OUT = ("test", "held out", NEVER)
LONG = "long"  # a speed with more tokens in a sequence than any of the others; not fitted to
LATENCY_INSIDE, LATENCY_BETWEEN = 10e-6, 30e-6  # s per message; assumed for all cases


def rows(unit: str = "") -> list[dict[str, str]]:
    """The published rows with that unit, or all of them, in the order of the file."""
    text = files("distributed.planner").joinpath("published.csv").read_text(encoding="utf-8")
    known = csv.DictReader(text.splitlines())
    return [row for row in known if not unit or row["unit"] == unit]


@cache
def longest(long: bool) -> int:
    """Most tokens in a sequence, of all published speeds, or of those behind the curve."""
    speeds = rows("tokens/s/GPU")
    return max(int(row["context"]) for row in speeds if long or row["use"] != LONG)


class Case(NamedTuple):
    """Scaling from `base` ranks to `ranks`, with the published `efficiency`.

    `compute` is the seconds of a step without messages, `size` the bytes of gradients per rank.
    """

    name: str
    source: str
    base: int
    ranks: int
    efficiency: float
    compute: float
    size: float
    per_host: int
    inside: float  # bytes/s
    network: float  # bytes/s of a host
    bucket: float = BUCKET

    @property
    def predicted(self) -> float:
        """T(base) / T(ranks) by the model of `scaling`."""
        inside, between = Link(LATENCY_INSIDE, self.inside), Link(LATENCY_BETWEEN, self.network)
        cluster = Cluster(1, self.per_host, inside, between, speed=1.0)
        steps = [
            step(cluster._replace(ranks=n), self.compute, self.size, self.bucket).total
            for n in (self.base, self.ranks)
        ]
        return steps[0] / steps[1]

    @property
    def deviation(self) -> float:
        """How much too high the prediction is, as a share of what was published."""
        return self.predicted / self.efficiency - 1


def case(row: dict[str, str]) -> Case:
    """A row whose unit is "efficiency"; GB/s and MB become bytes."""
    return Case(
        row["model"],
        f"{row['source']}, {row['section']}",
        int(row["base"]),
        int(row["gpus"]),
        float(row["value"]),
        float(row["compute"]),
        float(row["gradients"]),
        int(row["per_host"]),
        float(row["inside"]) * 1e9,
        float(row["network"]) * 1e9,
        float(row["bucket"]) * 1e6 if row["bucket"] else BUCKET,
    )


CASES = [case(row) for row in rows("efficiency")]


class Steps(NamedTuple):
    """Seconds of one model's step: on a GPU alone, on one GPU inside of DDP, and on many."""

    model: str
    alone: float
    wrapped: float
    many: float
    gpus: int

    @property
    def slowdown(self) -> float:
        """How much longer a step on many GPUs takes than alone, as a share of the latter."""
        return self.many / self.alone - 1

    @property
    def from_wrapping(self) -> float:
        """The share of the slow-down that is there on one GPU already, without any message."""
        return (self.wrapped - self.alone) / (self.many - self.alone)


def steps_of(model: str) -> Steps:
    """The rows of a benchmark that also ran DDP on a single GPU."""
    times = {
        (row["strategy"], int(row["gpus"])): float(row["value"])
        for row in rows("s/step")
        if row["model"] == model
    }
    gpus = max(n for _, n in times)
    return Steps(model, times["no DDP", 1], times["DDP", 1], times["DDP", gpus], gpus)


WRAPPED = [steps_of(model) for model in dict.fromkeys(row["model"] for row in rows("s/step"))]


class Failures(NamedTuple):
    """How often a run was interrupted without a plan: `unexpected` times of `all`."""

    gpus: int
    days: float
    all: int
    unexpected: int

    def between(self, gpus: int = 0) -> float:
        """Mean seconds from one failure to the next, of that run or on another number of GPUs.

        Each GPU, with its share of a host, is taken to fail as often as one of that run.
        """
        return self.days * 86_400 / self.unexpected * self.gpus / (gpus or self.gpus)


def failures() -> Failures:
    """Of Llama 3's run (Grattafiori et al. 2024, §3.3.4)."""
    (days,) = rows("days")
    counted = {row["note"]: int(row["value"]) for row in rows("interruptions")}
    return Failures(int(days["gpus"]), float(days["value"]), counted["all"], counted["unexpected"])


def median_deviation() -> float:
    """The median deviation of the predictions: above 0, they were too optimistic."""
    return statistics.median(case.deviation for case in CASES)


def main() -> None:
    """Predicted and published efficiency, what DDP costs on one GPU, and how often runs fail."""
    for case in CASES:
        name = f"{case.name}, {case.base} to {case.ranks} GPUs"
        print(f"{name:40} {case.predicted:6.1%} {case.efficiency:6.1%} {case.deviation:+6.1%}")
    print(f"median deviation {median_deviation():+.1%}")
    for steps in WRAPPED:
        shares = (
            f"{steps.slowdown:.1%} longer on {steps.gpus}, {steps.from_wrapping:.0%} of it on one"
        )
        print(f"{steps.model:24} {shares}")
    found = failures()
    hours, days = found.between() / 3600, found.between(8) / 86_400
    print(f"a failure every {hours:.1f} hours on {found.gpus:,} GPUs, every {days:.0f} days on 8")
    assert all(0 < case.predicted <= 1 for case in CASES)


if __name__ == "__main__":
    run_script(main)
