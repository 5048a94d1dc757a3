"""Bytes on each rank, by recipe and stage: usual mistakes are known; then a network is measured."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch

from distributed.model_states import RECIPES, STAGES, Recipe, total
from distributed.workbench.memory_meter import watch
from distributed.workbench.training import Alone, make_network
from playground.exercises.check import Draw, Wrong
from playground.exercises.suspects import recognise

HINTS = [
    "Count bytes for one parameter first: itself, its gradient, a master copy if there is one, and "
    "the optimizer's states.",
    "Adam keeps two numbers for each parameter: 8 bytes in fp32. A number has 4 bytes in fp32 and "
    "2 in bf16.",
    "Stage 1 divides the master copy and the states by the ranks, stage 2 also the gradients, "
    "stage 3 also the parameters.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "here is one$": "optimizer",
    "The master copy is missing": "optimizer",
}
WORDS = {  # what the reader is told of a recipe
    "fp32, SGD": {"weights": "fp32", "optimizer": "sgd", "master": False},
    "fp32, SGD with momentum": {"weights": "fp32", "optimizer": "momentum", "master": False},
    "fp32, Adam": {"weights": "fp32", "optimizer": "adam", "master": False},
    "bf16, Adam in fp32, no master copy": {"weights": "bf16", "optimizer": "adam", "master": False},
    "bf16, Adam in fp32, fp32 master copy": {
        "weights": "bf16",
        "optimizer": "adam",
        "master": True,
    },
}
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "fp32, SGD": (torch.optim.SGD, {}),
    "fp32, SGD with momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "fp32, Adam": (torch.optim.Adam, {}),
}  # measured, too
MODELS = [(7e9, 8), (1.5e9, 16), (70e9, 64)]


def suspects(parameters: float, ranks: int, stage: int, recipe: Recipe) -> dict[str, float]:
    """What usual mistakes give."""
    p, g, m, s = (parameters * size for size in recipe)
    right = total(parameters, ranks, stage, recipe)
    n, over = ranks, ranks if stage else 1  # over: what the states are divided by
    found = {
        "That is in GB: return bytes": right / 1e9,
        "That is in GiB: return bytes": right / 2**30,
        "Each GB is taken for a GiB here: 1 GB is 10⁹ bytes": right / 1e9 * 2**30,
        "Each GiB is taken for a GB here: bytes need no such factor": right / 2**30 * 1e9,
        "The master copy is missing": right - m / over,
        "That is what all ranks hold together, not one of them": right * n,
        "The optimizer's states are missing": right - s / over,
    }
    if s == 0:  # the first cases: there it would have been told
        found["Gradients are missing"] = right - (g / n if stage > 1 else g)
    if recipe.master == 0 and recipe.parameters == 4:
        found["fp32 weights need no master copy, and here is one"] = right + 4 * parameters / over
    # Half of the states: if one of them is missing, fp32 weights have told it before.
    half = "Adam keeps two numbers for each parameter: here is one"
    if recipe.parameters == 2:
        half = "States are taken to be in the weights' dtype, 2 bytes each: they are in fp32"
    found[half] = right - s / over / 2
    if stage == 0:
        found["DDP divides nothing, and here states are divided by the ranks"] = p + g + (m + s) / n
        found["DDP divides nothing, and here everything is divided by the ranks"] = right / n
    if stage == 1:
        found["ZeRO-1 does not divide gradients, and here they are divided"] = p + (g + m + s) / n
    if stage > 0:
        found[f"{STAGES[stage]} divides the master copy, too"] = right + m - m / n
        found["That is DDP: nothing is divided"] = p + g + m + s
        found[f"That is everything divided: {STAGES[stage]} is not ZeRO-3"] = (p + g + m + s) / n
    if stage == 2:
        found["ZeRO-2 divides gradients, too"] = p + g + (m + s) / n
        found["ZeRO-2 divides gradients, but not the parameters"] = g + (p + m + s) / n
    if stage == 3:
        either = "ZeRO-3 divides parameters and gradients, and here one of them is whole"
        found[either] = p + (g + m + s) / n
    return found


def amount(size: float) -> str:
    return f"{size / 1e9:.4g} GB" if abs(size) >= 1e6 else f"{size:.4g} bytes"


def check(memory: Callable[..., Any], *, draw: Draw) -> str:
    check_paper(memory, MODELS)
    check_paper(memory, [(1e8 * draw(1, 2000), draw(2, 512)) for _ in range(3)])
    said = "; ".join(measured(memory, name) for name in OPTIMIZERS)
    return f"Right: every recipe, every stage, in bytes on each rank. Measured: {said}."


def measured(memory: Callable[..., Any], name: str) -> str:
    """Train a small network on one device, count what stays, and say what the answer predicts."""
    optimizer, settings = OPTIMIZERS[name]
    model = make_network(width=64)
    use = watch(model, Alone(model, optimizer, lr=0.1, **settings), batch=8, examples=8.0)
    kept = ("parameters", "gradients", "optimizer states")
    counted = sum(use.after["backward"].get(what, 0) for what in kept)
    predicted = float(memory(sum(p.numel() for p in model.parameters()), 1, 0, **WORDS[name]))
    more = counted / predicted - 1
    return f"{name} keeps {counted:,} bytes, {more:+.1%} beside your {predicted:,.0f}"


def check_paper(memory: Callable[..., Any], models: list[tuple[float, int]]) -> None:
    for name, words in WORDS.items():
        recipe = RECIPES[name]
        for parameters, ranks in models:
            for stage in range(len(STAGES)):
                found = memory(parameters, ranks, stage, **words)
                right = total(parameters, ranks, stage, recipe)
                if isinstance(found, dict):
                    found = sum(found.values())
                if not isinstance(found, Real | np.ndarray | torch.Tensor):
                    raise Wrong(f"memory(...) returns {found!r}: return a number of bytes")
                found = float(found)
                if abs(found - right) <= 1e-6 * right:
                    continue
                case = (
                    f"{parameters / 1e9:g} billion parameters, {name}, {STAGES[stage]} on {ranks} "
                    f"ranks: {amount(found)} on each rank, and it should be {amount(right)}"
                )
                known = suspects(parameters, ranks, stage, recipe)
                said = recognise(found, known) or (
                    f"For each parameter that is {(found - right) / parameters:+.3g} bytes"
                )
                raise Wrong(f"{case}. {said}")
