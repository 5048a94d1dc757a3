"""Plans for PyTorch next to the results of executing them with `python -m bench.executed_plans`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.model_states import RECIPES
from distributed.planner.hardware import GPUS
from distributed.planner.job import REDUCED_IN_FP32, Job, Option, cluster_of, option
from distributed.planner.memory import Held, held, sent
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, PRESETS
from playground.planner.measured_cases import rank_zero
from playground.planner.measured_cases import recorded as recorded_day
from playground.show.recorded import FOLDER, stamp
from playground.show.tables import Table
from recipes.copies import torch_code

KEPT = FOLDER / "executed_plans.json"
WORLDS = (("llama-2-7b", 8), ("llama-2-7b", 64), ("llama-2-13b", 16), ("llama-2-70b", 64))
PRECISIONS = (REDUCED_IN_FP32, "fp32, Adam")
ROWS, CONTEXT = 1, 2048


class Case(NamedTuple):
    """A strategy for a model on a number of GPUs, with its precision and its checkpointing."""

    model: str
    gpus: int
    strategy: str
    recipe: str
    checkpoint: str

    @property
    def job(self) -> Job:
        recipe = RECIPES[self.recipe]
        return Job(PRESETS[self.model], ROWS, CONTEXT, 1, self.checkpoint, recipe)

    @property
    def cluster(self) -> Cluster:
        """Hosts of eight; HSDP needs two of them, so that eight GPUs are two hosts of four."""
        per_host = 4 if self.gpus == 8 and self.strategy == "HSDP" else 8
        return cluster_of(GPUS["h100"], self.gpus, per_host, speed=4e14)

    @property
    def option(self) -> Option:
        """Of ranks with all the memory that they need: nothing is changed so that it fits."""
        return option(self.job, self.strategy, self.cluster, 1e15)

    @property
    def held(self) -> Held:
        """Bytes at the peak, as planned."""
        return held(self.job, self.strategy, self.cluster, self.checkpoint)

    @property
    def sent(self) -> Held:
        return sent(self.job, self.strategy, self.cluster)

    @property
    def digest(self) -> str:
        """Of what *Copy as* gives."""
        code = torch_code(self.option, self.job, self.cluster)
        return hashlib.sha256(code.encode()).hexdigest()[:16]


class LedgerCase(Case):
    """A case with as many tokens as the ledger of the chapter *The memory problem*."""

    @property
    def job(self) -> Job:
        return super().job._replace(context=4096)


LEDGER = tuple(
    LedgerCase("llama-2-7b", 8, "ZeRO-1", REDUCED_IN_FP32, name) for name in ("none", "full")
)


def cases() -> Iterator[Case]:
    """Every world with two precisions, three ways of checkpointing, and five strategies."""
    for (model, gpus), recipe, checkpoint, name in product(
        WORLDS, PRECISIONS, CHECKPOINTS, STACKS["pytorch"]
    ):
        yield Case(model, gpus, name, recipe, checkpoint)


def recorded() -> dict[str, Any]:
    """The stamp, and the `rows` that were executed: of each case the bytes held and sent.

    The rows of `LEDGER` are in `ledger`.
    """
    return json.loads(KEPT.read_text())


def case_of(row: dict[str, Any]) -> Case:
    return Case(*(row[name] for name in Case._fields))


def difference(row: dict[str, Any]) -> float:
    """How much more the plan holds, as a share of what was executed."""
    return sum(case_of(row).held.values()) / sum(row["held"].values()) - 1


def executed_table(rows: Iterable[dict[str, Any]], note: str = "") -> Table:
    """Planned, executed and the difference, a line for each row.

    If rank 0 of one of them ran on a GPU, there is a column for the peak that CUDA reported.
    """
    rows, on_gpu = list(rows), rank_zero()
    measured = [on_gpu.get(case_of(row)) for row in rows]
    lines = []
    for row, found in zip(rows, measured, strict=True):
        case = case_of(row)
        gigabytes = [sum(parts.values()) / 1e9 for parts in (case.held, row["held"])]
        hosts = row["gpus"] // row["per_host"]
        on = f"{hosts} × {row['per_host']}" if hosts > 1 else f"{row['gpus']}"
        where = f"{case.model} on {on}", case.strategy
        how = "fp32" if case.recipe.startswith("fp32") else "bf16", case.checkpoint
        numbers = [*(f"{size:.1f} GB" for size in gigabytes), f"{difference(row):+.1%}"]
        if any(measured):
            numbers.append(f"{found['bytes'] / 1e9:.1f} GB" if found else "")
        lines.append((*where, *how, *numbers))
    header = ["", "strategy", "precision", "checkpoint", "planned", "executed", "difference"]
    if any(measured):
        env = recorded_day("rank_zero")["env"]
        header.append("on a GPU")
        note += f". Rank 0 with real tensors: {env['gpu']}, {env['date']}, commit {env['commit']}"
    return Table(header, lines, note)


def where() -> str:
    """What `stamp` says, without the commit if the code that ran wasn't committed."""
    said, _, commit = stamp(recorded()).rpartition(", commit ")
    return said if commit.endswith("-dirty") else f"{said}, commit {commit}"
