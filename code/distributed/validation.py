"""The planner against published training runs: the error of every row, and what fitted.

    absolute   tokens/s of each GPU from the shape, the GPU and the network alone
    scaling    many hosts against one host of the same source: the node is calibrated, links are not

The constants of `speed` were fitted to rows marked "calibrate", on one host each. Sources marked
"test" had no part in any constant.
"""

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from distributed.hardware import gpu
from distributed.model_states import RECIPES, Recipe
from distributed.plan import RECIPE, Job, Option, cluster_of, option
from distributed.published import rows
from distributed.runtime.script import run_script
from distributed.shapes import PRESETS
from distributed.speed import achieved

OTHERS = {"bf16 for everything, Adam": Recipe(2, 2, 0, 4)}  # of KempnerForge


class Run(NamedTuple):
    """A published run of a transformer, and the planner's tokens/s of each GPU for it."""

    row: dict[str, str]
    published: float
    predicted: float
    option: Option

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def source(self) -> str:
        return self.row["source"].split(",")[0]

    @property
    def gpus(self) -> int:
        return int(self.row["gpus"])

    @property
    def one_host(self) -> bool:
        return self.gpus <= int(self.row["per_host"])


def job_of(row: dict[str, str]) -> Job:
    return Job(
        PRESETS[row["model"]],
        int(row["rows"]),
        int(row["context"]),
        int(row["accumulate"]),
        row["checkpoint"],
        (RECIPES | OTHERS)[row["recipe"] or RECIPE],
        row["loss"] == "fused",
    )


def predict(row: dict[str, str], memory: float | None = None) -> Run:
    """A row's throughput; `memory` is bytes of a GPU, its own unless told."""
    one, job = gpu(row["gpu"]), job_of(row)
    n, per_host = int(row["gpus"]), int(row["per_host"])
    speed = achieved(one, job.model, job.tokens)
    cluster = cluster_of(one, n, per_host, float(row["network"]) * 1e9, speed)
    found = option(job, row["strategy"], cluster, memory or one.memory)
    rate = job.accumulate * job.tokens / found.step.total
    if row["unit"] == "TFLOP/s/GPU":  # a forward pass that is computed again is counted there
        rate *= job.model.flops(job.context) * (4 / 3 if job.checkpoint == "full" else 1) / 1e12
    return Run(row, float(row["value"]), rate, found)


def runs(unit: str = "tokens/s/GPU") -> list[Run]:
    """All published runs of transformers in this unit."""
    return [predict(row) for row in rows() if row["unit"] == unit]


def scaling(all_runs: Iterable[Run]) -> list[tuple[Run, Run, float]]:
    """Runs on many hosts, each with one of the same kind on few, and the error of their ratio.

    The other run has as few GPUs as there are, and the nearest micro-batch.
    """
    known, found = list(all_runs), []
    alike = ("source", "gpu", "model", "context", "checkpoint", "note")
    for run in known:
        others = [
            each
            for each in known
            if each.gpus < run.gpus and all(each.row[key] == run.row[key] for key in alike)
        ]
        if run.one_host or not others:
            continue
        few = min(
            others, key=lambda each: (each.gpus, abs(int(each.row["rows"]) - int(run.row["rows"])))
        )
        ratio = run.predicted / few.predicted / (run.published / few.published) - 1
        found.append((run, few, ratio))
    return found


def implied_bandwidth(run: Run) -> float:
    """Bytes/s of a host, if a published step were nothing but its messages.

    ZeRO-3 gathers parameters twice and reduces gradients once: 3 · 2Ψ bytes into every host.
    """
    row, model = run.row, PRESETS[run.row["model"]]
    job = job_of(row)
    flops = model.flops(job.context) * job.tokens * (4 / 3 if job.checkpoint == "full" else 1)
    return 3 * 2 * model.parameters / (flops / (run.published * 1e12))


class Errors(NamedTuple):
    """Of so many rows: the median of absolute errors, nine in ten, the worst, and the bias."""

    of_rows: int
    median: float
    nine_in_ten: float
    worst: float
    bias: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> "Errors":
        signed = list(errors)
        sizes = sorted(abs(error) for error in signed)
        tenth = sizes[min(len(sizes) - 1, round(0.9 * len(sizes)))]
        return cls(
            len(sizes), statistics.median(sizes), tenth, sizes[-1], statistics.median(signed)
        )

    def __str__(self) -> str:
        shares = f"{self.median:.1%}, nine in ten {self.nine_in_ten:.1%}, worst {self.worst:.1%}"
        return f"{self.of_rows:3} rows: median {shares}, bias {self.bias:+.1%}"


def main() -> None:
    """Errors by source, of scaling, and the runs that fitted and would not by the planner."""
    every = runs()
    for source in dict.fromkeys(run.source for run in every):
        print(f"{source:14}", Errors.of(run.error for run in every if run.source == source))
    print(f"{'all':14}", Errors.of(run.error for run in every))
    print(f"{'scaling':14}", Errors.of(error for _, _, error in scaling(every)))
    fitted = sum(run.option.fits for run in every)
    print(f"{fitted} of {len(every)} runs that are published fit by the planner, too")
    assert fitted == len(every)


if __name__ == "__main__":
    run_script(main)
