"""What others measured and published, with all that a prediction needs, and its source.

All rows stand in `published.csv`: a value, its unit, source and section. Here are those that say
how well DDP scales. Compute is taken from the same source's time on one device, or on one host.
Nothing is tuned to a case: latencies are the same for all, links have what their vendors state.
"""

import csv
import statistics
from importlib.resources import files
from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.runtime.script import run_script
from distributed.scaling import BUCKET, step

LATENCY_INSIDE, LATENCY_BETWEEN = 10e-6, 30e-6  # s, of a message; assumed, for all cases


def rows() -> list[dict[str, str]]:
    """All published rows, as they stand in the file."""
    text = files("distributed").joinpath("published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


class Case(NamedTuple):
    """Steps on `ranks` against steps on `base` ranks; `efficiency` is what was published.

    `compute` is seconds of a step without messages, `size` bytes of gradients on each rank.
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


CASES = [case(row) for row in rows() if row["unit"] == "efficiency"]

# The share of a step that overlap saves on 32 GPUs (Li et al. 2020, §5.1), where their "speedup" is
# read as a share of the step without overlap. They do not state how long messages take.
OVERLAP = {
    "ResNet-50, NCCL": 0.380,
    "BERT, NCCL": 0.352,
    "ResNet-50, Gloo": 0.268,
    "BERT, Gloo": 0.215,
}


def saved(messages: float) -> float:
    """The share of a step that overlap saves, with many buckets.

    `messages` is their time in backward passes, each of which lasts two forward passes. So a step
    of 3/2 + messages becomes one of 1/2 + max(1, messages): at most 2/5 less, where both are equal.
    """
    return min(1.0, messages) / (1.5 + messages)


def median_deviation() -> float:
    """By how much predictions are off in the middle case: above 0 they were too optimistic."""
    return statistics.median(case.deviation for case in CASES)


def main() -> None:
    """Predicted and published efficiency of all cases."""
    for case in CASES:
        name = f"{case.name}, {case.base} to {case.ranks} GPUs"
        print(f"{name:40} {case.predicted:6.1%} {case.efficiency:6.1%} {case.deviation:+6.1%}")
    print(f"median deviation {median_deviation():+.1%}")
    for name, share in OVERLAP.items():
        print(f"overlap saves {share:.1%} for {name}, {share / saved(1.0) - 1:+.1%} from the most")
        assert share <= saved(1.0)
    assert all(0 < case.predicted <= 1 for case in CASES)


if __name__ == "__main__":
    run_script(main)
