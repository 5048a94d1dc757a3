"""Scaling that others measured and published, with all that a prediction needs, and its source.

Compute is taken from the same source's time on one device, or on one host. Nothing is tuned to a
case: latencies are the same for all, and links have the bandwidth that their vendors state.
"""

import statistics
from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.runtime.script import run_script
from distributed.scaling import BUCKET, step

LATENCY_INSIDE, LATENCY_BETWEEN = 10e-6, 30e-6  # s, of a message; assumed, for all cases
NVLINK_1, NVLINK_2, PCIE_3 = 80e9, 150e9, 16e9  # bytes/s in each direction, as vendors state
ALL_IN_ONE = 1e15  # a bucket that holds all gradients: they leave when the backward pass has ended


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


# Parameters as the torchvision library lists them; four bytes for each gradient.
RESNET_50, RESNET_101, VGG_16 = 4 * 25_557_032, 4 * 44_549_160, 4 * 138_357_544
INCEPTION_3, RESNEXT_101, BERT = 4 * 27_161_264, 4 * 88_791_336, 4 * 110e6  # BERT: Devlin 2018, §3

GOYAL = "Goyal et al. 2017, §4.3 and §5.5"  # 120 ms backward; 12 % longer on 44 times the GPUs
HOROVOD = "Horovod's page of benchmarks; speed of one P100: TensorFlow's page of benchmarks (2017)"
DLPERF = "OneFlow's DLPerf report (2020), NGC PyTorch; each server has one card of 100 Gbit/s"
PYTORCH = "PyTorch 1.4, benchmarks/distributed/ddp; four cards of 100 Gbit/s in a server"

CASES = [
    Case("ResNet-50, 32 images", GOYAL, 8, 352, 1 / 1.12, 1.5 * 0.120, RESNET_50,
         8, NVLINK_1, 6.25e9),
    Case("VGG-16", HOROVOD, 1, 128, 0.79, 64 / 132, VGG_16, 4, PCIE_3, 3.125e9, 64e6),
    Case("VGG-16", HOROVOD, 1, 512, 0.68, 64 / 132, VGG_16, 4, PCIE_3, 3.125e9, 64e6),
    Case("Inception V3", HOROVOD, 1, 512, 0.90, 64 / 142, INCEPTION_3, 4, PCIE_3, 3.125e9, 64e6),
    *(
        Case("ResNet-50, 128 images", DLPERF, 8, n, rate / n * 8 / 2887.65, 128 / 367.29,
             RESNET_50, 8, NVLINK_2, 12.5e9)
        for n, rate in ((16, 5716.79), (32, 10917.09))
    ),
    *(
        Case(f"BERT-base, {rows} rows", DLPERF, 8, n, rate / n * 8 / eight, rows / one,
             BERT, 8, NVLINK_2, 12.5e9, ALL_IN_ONE)
        for rows, one, eight, n, rate in (
            (32, 119.60, 921.32, 16, 1499.40), (32, 119.60, 921.32, 32, 2885.81),
            (48, 121.94, 928.01, 16, 1584.32), (48, 121.94, 928.01, 32, 3039.30),
        )
    ),
    *(
        Case(name, PYTORCH, 1, 16, one / many, one, size, 8, NVLINK_2, 50e9)
        for name, one, many, size in (
            ("ResNet-50, 32 images", 0.097, 0.104, RESNET_50),
            ("ResNet-101", 0.162, 0.179, RESNET_101),
            ("ResNeXt-101 32x8d", 0.415, 0.450, RESNEXT_101),
        )
    ),
]  # fmt: skip

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
