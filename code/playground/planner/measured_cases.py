"""Programs that were run on one GPU, with the planner's numbers for each of them.

`python -m bench.gpu_day` runs them and records the measurements in bench/recorded/gpu_day.json.
Pages compare those with the plans that are made here, and show nothing if the file doesn't exist.
"""

import json
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.model_states import RECIPES
from distributed.planner.hardware import GPUS, Gpu
from distributed.planner.job import REDUCED_IN_FP32, Job, cluster_of, option
from distributed.planner.memory import SHARED, fsdp2, replicas
from distributed.planner.shapes import PRESETS, gpt
from distributed.planner.speed import achieved
from playground.show.recorded import FOLDER

KEPT = FOLDER / "gpu_day.json"
RECIPE = REDUCED_IN_FP32  # FSDP2 with fp32 shards and fp32 reduction; DDP: autocast
# Models to train, and the number of tokens per sequence. "tiny" is for dry runs on a CPU.
SHAPES = {
    "gpt-2-124m": (PRESETS["gpt-2-124m"], 1024),
    "llama-2-7b, 4 layers": (PRESETS["llama-2-7b"]._replace(layers=4), 2048),
    "tiny": (gpt(layers=2, d=64, heads=4, vocab_size=96, positions=32), 32),
}


class Point(NamedTuple):
    """One program on one GPU: a model, a strategy on a single rank, and its micro-batch."""

    model: str
    strategy: str  # "DDP", or "ZeRO-3" for FSDP2
    compiled: bool
    checkpoint: str
    rows: int
    accumulate: int = 1

    @property
    def job(self) -> Job:
        shape, context = SHAPES[self.model]
        recipe = RECIPES[RECIPE]
        return Job(
            shape, self.rows, context, self.accumulate, self.checkpoint, recipe,
            compiled=self.compiled,
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.rows * self.job.context

    @property
    def flops(self) -> float:
        """FLOP of a step, without what is computed again."""
        return self.job.model.flops(self.job.context) * self.tokens * self.accumulate

    def planned_seconds(self, one: Gpu) -> float:
        """The planned time of a step."""
        found = option(self.job, self.strategy, self.cluster(one), one.memory)
        return found.step.total

    def planned_bytes(self, one: Gpu) -> float:
        """The planned peak, without the allowance for the allocator and CUDA's own memory."""
        way = fsdp2 if self.strategy in SHARED else replicas
        return sum(way(self.job, self.strategy, self.cluster(one), self.checkpoint).values())

    def cluster(self, one: Gpu) -> Cluster:
        """A single GPU of this kind."""
        speed = achieved(one, self.job.model, self.tokens, self.compiled)
        return cluster_of(one, 1, speed=speed)


def point_of(row: dict[str, Any]) -> Point:
    """The program that a recorded row is about."""
    return Point(*(row[name] for name in Point._fields))


def recorded(step: str) -> dict[str, Any]:
    """What a step of the day has found; empty if it found nothing, or was never run."""
    return json.loads(KEPT.read_text()).get(step, {}) if KEPT.exists() else {}


def rank_zero() -> dict[tuple[Any, ...], dict[str, Any]]:
    """Peak memory of rank 0 of N on a real GPU, by model, GPUs, strategy, recipe, checkpoint."""
    names = "model", "gpus", "strategy", "recipe", "checkpoint"
    rows = recorded("rank_zero").get("ranks", [])
    return {tuple(row[name] for name in names): row for row in rows if "bytes" in row}


def known(name: str, memory: float) -> Gpu | None:
    """The planner's entry for a GPU that CUDA calls `name`; of several, the nearest in memory.

    `memory` is in bytes. None if the planner doesn't know the GPU.
    """
    words = name.upper()
    same = [
        one
        for key, one in GPUS.items()
        if key.split("-")[0].upper() in words and ("PCIE" in words) == ("pcie" in key)
    ]
    return min(same, key=lambda one: abs(one.memory - memory), default=None)
