"""Plans for PyTorch beside what `python -m bench.executed_plans` found when it executed them."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.model_states import RECIPES
from distributed.planner.copies import torch_code
from distributed.planner.hardware import GPUS
from distributed.planner.job import RECIPE, Job, Option, cluster_of, option
from distributed.planner.memory import Held, held, sent
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, PRESETS
from playground.show.recorded import FOLDER, stamp
from playground.show.tables import Table

KEPT = FOLDER / "executed_plans.json"
MODELS = {"llama-2-7b": 8, "llama-2-13b": 16, "llama-2-70b": 64}  # each on so many GPUs
PRECISIONS = (RECIPE, "fp32, Adam")
ROWS, CONTEXT = 1, 2048


class Case(NamedTuple):
    """A strategy for a model, in one precision and with one way of checkpointing."""

    model: str
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
        gpus = MODELS[self.model]
        per_host = 4 if gpus == 8 and self.strategy == "HSDP" else 8
        return cluster_of(GPUS["h100"], gpus, per_host, speed=4e14)

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


def cases() -> Iterator[Case]:
    """All there are: three models, two precisions, three ways of checkpointing, five strategies."""
    for model, recipe, checkpoint, name in product(
        MODELS, PRECISIONS, CHECKPOINTS, STACKS["pytorch"]
    ):
        yield Case(model, name, recipe, checkpoint)


def recorded() -> dict[str, Any]:
    """The stamp, and the rows that were executed: of each case the bytes held and sent."""
    return json.loads(KEPT.read_text())


def case_of(row: dict[str, Any]) -> Case:
    return Case(*(row[name] for name in Case._fields))


def difference(row: dict[str, Any]) -> float:
    """How much more the plan holds, as a share of what was executed."""
    return sum(case_of(row).held.values()) / sum(row["held"].values()) - 1


def executed_table(rows: Iterable[dict[str, Any]], note: str = "") -> Table:
    """Planned, executed and the difference, a line for each row."""
    lines = []
    for row in rows:
        case = case_of(row)
        gigabytes = [sum(parts.values()) / 1e9 for parts in (case.held, row["held"])]
        hosts = row["gpus"] // row["per_host"]
        on = f"{hosts} × {row['per_host']}" if hosts > 1 else f"{row['gpus']}"
        where = f"{case.model} on {on}", case.strategy
        how = "fp32" if case.recipe.startswith("fp32") else "bf16", case.checkpoint
        numbers = (*(f"{size:.1f} GB" for size in gigabytes), f"{difference(row):+.1%}")
        lines.append((*where, *how, *numbers))
    header = ["", "strategy", "precision", "checkpoint", "planned", "executed", "difference"]
    return Table(header, lines, note)


def where() -> str:
    return stamp(recorded())
