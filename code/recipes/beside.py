"""Plans for PyTorch next to the same plans executed, to see the difference before you pay.

PyTorch's tracker counts part of a plan's gathered parameters, buckets and casts as activations. So
the table has one line for everything that comes and goes within a step.
"""

import inspect
import re
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from distributed.cost import Cluster
from distributed.planner.job import Job, Option
from distributed.planner.memory import Held, held, sent
from recipes.executed import Executed, MakeModel, execute
from recipes.own import Own, own

COMES_AND_GOES = "activations, gathers, buckets"
PARTS = {  # what a plan and what a tracker call it → what it is called here
    "parameters": "parameters",
    "master copy": "parameters",
    "gradients": "gradients",
    "optimizer states": "optimizer states",
    "Sharded Param": "parameters",
    "Parameter": "parameters",
    "Sharded Grad": "gradients",
    "Gradient": "gradients",
    "OptState": "optimizer states",
    "Optstate": "optimizer states",
}


PEAKS = (
    "Compare the first line of each strategy, which is the peak. A part below it may differ\n"
    "if the two peaks are at different moments of a step: at the loss, there are no gradients\n"
    "yet, and at the end of the backward pass, all of them. Parts near 0 have no difference."
)


class Beside(NamedTuple):
    """One strategy: bytes at the peak and bytes given to collectives, planned and executed."""

    name: str
    checkpoint: str
    planned: Executed
    executed: Executed

    @property
    def difference(self) -> float:
        """How much more the plan holds, as a share of what was executed."""
        return self.planned.held / self.executed.held - 1


def beside(
    options: list[Option],
    job: Job,
    cluster: Cluster,
    stack: str = "pytorch",
    module: str | None = None,
) -> list[Beside]:
    """Each option that fits, or the smallest if none does, planned and executed.

    `module` is package.module:function, of your own. Raises ValueError for what cannot be
    executed: your module perhaps, or any in a process that has a process group.
    """
    if stack != "pytorch":
        raise ValueError(f"stack={stack!r}: --execute runs PyTorch's recipes alone")
    if job.fused_loss:
        raise ValueError("fused_loss: PyTorch's own loss is executed: leave it out")
    if job.model.experts or job.model.latent:
        what = "a mixture of experts" if job.model.experts else "latent attention"
        raise ValueError(f"execute: there is no recipe for {what}: leave --execute out")
    if job.frozen:
        way = "lora" if job.lora else "trainable"
        raise ValueError(f"{way}: the recipes that are executed train everything: leave it out")
    if job.recipe.parameters == 2 and not job.recipe.master:
        way = "choose --recipe bf16, or leave --execute out"
        raise ValueError(f"recipe: PyTorch can't cast parameters in a fake world; {way}")
    if round(job.recipe.states) == 2 and not is_installed("torchao.optim"):
        way = "pip install torchao, or choose --recipe bf16"
        raise ValueError(f"recipe: 8-bit Adam needs torchao: {way}")
    if job.compiled:
        raise ValueError("compile: nothing is compiled in a fake world: leave it out")
    if job.rows != int(job.rows):
        raise ValueError(f"sequences={job.rows:g}: give a whole number to execute")
    if not module and 0 < job.model.positions < job.context:
        has = f"the model has {job.model.positions:,} learned positions"
        raise ValueError(f"context={job.context}: {has}: give at most as many to execute")
    mine = own(module) if module else None
    fitting = [each for each in options if each.fits]
    rows = []
    for each in fitting or [min(options, key=lambda option: option.needs)]:
        planned = Executed(
            held(each.job, each.name, cluster, each.checkpoint), sent(each.job, each.name, cluster)
        )
        try:
            executed = run(each, each.job, cluster, mine)
        except RuntimeError as error:
            raise ValueError(f"execute: {error}") from None
        rows.append(Beside(each.name, each.checkpoint, planned, executed))
    return rows


def run(each: Option, job: Job, cluster: Cluster, mine: Own | None) -> Executed:
    if mine is None:
        return execute(each, job, cluster)
    make: MakeModel = partial(made_with_loss, mine.make)
    try:
        return execute(each, job, cluster, make, as_python(f"model.{mine.blocks}"))
    except RuntimeError as error:
        if "process group" in str(error):
            raise
        raise cannot(each, error) from error
    except Exception as error:  # a user's code may raise anything
        raise cannot(each, error) from error


def is_installed(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def as_python(name: str) -> str:
    """Path of a module as `named_modules` gives it → a Python expression."""
    return re.sub(r"\.(\d+)", r"[\1]", name).rstrip(".")


def cannot(each: Option, error: Exception) -> ValueError:
    first = str(error).strip().partition("\n")[0]
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return ValueError(f"module: as {each.name} it cannot be executed without its GPUs: {said}")


class WithLoss(nn.Module):
    """A language model as `train_step` calls it: with words and those that follow, for its loss.

    Yours may take the words alone or both, and give a loss, scores for each word, or an object or
    a tuple with one of them.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        parameters = inspect.signature(model.forward).parameters.values()
        needed = [each for each in parameters if each.default is each.empty]
        self.takes = 2 if sum(each.kind == each.POSITIONAL_OR_KEYWORD for each in needed) > 1 else 1

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Both (rows, tokens)."""
        found = self.model(*(words, following)[: self.takes])
        for name in ("loss", "logits"):
            found = value if (value := getattr(found, name, None)) is not None else found
        if isinstance(found, tuple | list):
            found = next(each for each in found if isinstance(each, torch.Tensor))
        if found.ndim == 0:
            return found
        return F.cross_entropy(found.flatten(0, -2).float(), following.flatten())


def made_with_loss(make: Any) -> WithLoss:
    return WithLoss(make())


def grouped(parts: Held) -> Held:
    found = dict.fromkeys((*PARTS.values(), COMES_AND_GOES), 0.0)
    for part, size in parts.items():
        found[PARTS.get(part, COMES_AND_GOES)] += size
    return found


def as_table(every: list[Beside], ranks: int) -> str:
    """For people, narrow enough for a page. GB are 10⁹ bytes."""
    whole = f"rank 0 of {ranks:,} in a fake world, torch {torch.__version__}"
    lines = [f"{'GB':32}{'planned':>9}{'executed':>10}{'difference':>12}"]
    for each in every:
        planned, found = each.planned, each.executed
        name = f"{each.name}, checkpoint {each.checkpoint}"
        lines.append(line(name, planned.held, found.held))
        mine, theirs = grouped(planned.memory), grouped(found.memory)
        lines += [line(f"  {part}", mine[part], theirs[part]) for part in mine]
        for part in dict.fromkeys((*planned.sent, *found.sent)):
            given = planned.sent.get(part, 0.0), found.sent.get(part, 0.0)
            lines.append(line(f"  given to {part}", *given))
    return "\n".join([*lines, f"executed as {whole}", PEAKS])


def line(name: str, planned: float, executed: float) -> str:
    """A share of a part that is not there at the peak, or nearly, says nothing."""
    share = f"{planned / executed - 1:+.1%}" if executed > 1e5 else ""
    share = share.replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")
    return f"{name:32}{planned / 1e9:9.2f}{executed / 1e9:10.2f}{share:>12}"


def as_dict(every: list[Beside]) -> list[dict[str, Any]]:
    """For programs: bytes."""
    return [
        {
            "name": each.name,
            "checkpoint": each.checkpoint,
            "planned": {"held": grouped(each.planned.memory), "sent": each.planned.sent},
            "executed": {"held": grouped(each.executed.memory), "sent": each.executed.sent},
            "difference": each.difference,
        }
        for each in every
    ]
