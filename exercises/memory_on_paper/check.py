"""Bytes per rank, by recipe and stage. Names typical mistakes, then measures a network."""

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
    "Start with a single parameter. Which numbers does a rank keep for it, and how many bytes "
    "does each of them take?",
    "A number takes 4 bytes in fp32 and 2 in bf16. What the optimizer keeps is in fp32, and the "
    "master copy is part of that.",
    "Split the bytes into three groups: parameter, gradient, and optimizer. Each stage divides "
    "one more group by the number of ranks. Which one comes first?",
]
LOOK = {  # words of a message → the name in the answer to look at
    "there is only one$": "optimizer",
    "The master copy is missing": "optimizer",
}
WORDS = {  # a recipe as the answer's arguments
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
    """What typical mistakes give."""
    p, g, m, s = (parameters * size for size in recipe)
    right = total(parameters, ranks, stage, recipe)
    n, over = ranks, ranks if stage else 1  # over: what the states are divided by
    found = {
        "That is in GB: return bytes": right / 1e9,
        "That is in GiB: return bytes": right / 2**30,
        "This takes each GB for a GiB, but 1 GB is 10⁹ bytes": right / 1e9 * 2**30,
        "This takes each GiB for a GB, but bytes don't need such a factor": right / 2**30 * 1e9,
        "The master copy is missing": right - m / over,
        "That is what all ranks keep together, not each of them": right * n,
        "The optimizer's states are missing": right - s / over,
    }
    if s == 0:  # in the first recipes, so it would have been found there
        found["Gradients are missing"] = right - (g / n if stage > 1 else g)
    if recipe.master == 0 and recipe.parameters == 4:
        found["fp32 weights don't need a master copy, but this counts one"] = (
            right + 4 * parameters / over
        )
    # Half of the states: if one of the two is missing, a recipe in fp32 has shown it before.
    half = "Adam keeps two numbers per parameter: there is only one"
    if recipe.parameters == 2:
        half = "This counts states in the weights' dtype, 2 bytes each, but they are in fp32"
    found[half] = right - s / over / 2
    if stage == 0:
        found["DDP divides nothing, but this divides the states by the ranks"] = p + g + (m + s) / n
        found["DDP divides nothing, but this divides everything by the ranks"] = right / n
    if stage == 1:
        found["ZeRO-1 doesn't divide gradients, but this divides them"] = p + (g + m + s) / n
    if stage > 0:
        found[f"{STAGES[stage]} divides the master copy, too"] = right + m - m / n
        found["That is DDP, which divides nothing"] = p + g + m + s
        found[f"This divides everything, but {STAGES[stage]} isn't ZeRO-3"] = (p + g + m + s) / n
    if stage == 2:
        found["ZeRO-2 divides gradients, too"] = p + g + (m + s) / n
        found["ZeRO-2 divides gradients, but not the parameters"] = g + (p + m + s) / n
    if stage == 3:
        either = "ZeRO-3 divides parameters and gradients, but this leaves one of them whole"
        found[either] = p + (g + m + s) / n
    return found


def amount(size: float) -> str:
    return f"{size / 1e9:.4g} GB" if abs(size) >= 1e6 else f"{size:.4g} bytes"


def check(memory: Callable[..., Any], *, draw: Draw) -> str:
    check_paper(memory, MODELS)
    check_paper(memory, [(1e8 * draw(1, 2000), draw(2, 512)) for _ in range(3)])
    said = "; ".join(measured(memory, name) for name in OPTIMIZERS)
    return f"Right for every recipe and every stage. Measured on one device: {said}."


def measured(memory: Callable[..., Any], name: str) -> str:
    """Train a small network on one device, and compare what it keeps with the answer."""
    optimizer, settings = OPTIMIZERS[name]
    model = make_network(width=64)
    use = watch(model, Alone(model, optimizer, lr=0.1, **settings), batch=8, examples=8.0)
    kept = ("parameters", "gradients", "optimizer states")
    counted = sum(use.after["backward"].get(what, 0) for what in kept)
    predicted = float(memory(sum(p.numel() for p in model.parameters()), 1, 0, **WORDS[name]))
    more = counted / predicted - 1
    return f"{name} keeps {counted:,} bytes, and you predict {predicted:,.0f} ({more:+.1%})"


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
                    f"ranks: {amount(found)} per rank, but it should be {amount(right)}"
                )
                known = suspects(parameters, ranks, stage, recipe)
                said = recognise(found, known) or (
                    f"The difference is {(found - right) / parameters:+.3g} bytes per parameter"
                )
                raise Wrong(f"{case}. {said}")
