"""Optimizers and schedules of the fuzzer's draws: a table of each.

With a large eps a step is a smooth function of the gradient, also where that is zero: noise in the
last bits of float64 stays there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn, optim
from torch.optim import lr_scheduler


class Row(NamedTuple):
    made: Callable[..., optim.Optimizer]
    settings: dict[str, Any]
    is_refused: bool = False  # whether ZeRO may refuse it
    closure: bool = False  # whether a step computes the gradient as often as it likes
    takes_empty: bool = True  # parameters without elements
    resumes: bool = True  # whether torch's load_state_dict keeps the dtype of its states


ADAM: dict[str, Any] = {"lr": 0.05, "eps": 1e-3}
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
# Those of which a bound on rounding is known, and which take any dtype.
BOUNDED: dict[str, Row] = {
    "momentum": Row(optim.SGD, MOMENTUM),
    "adam": Row(optim.Adam, ADAM),
    "adamw": Row(optim.AdamW, {**ADAM, "weight_decay": 0.1}),
    "rmsprop": Row(optim.RMSprop, {"lr": 0.02, "eps": 1e-3, "momentum": 0.5}),
}
OPTIMIZERS: dict[str, Row] = {
    **BOUNDED,
    "momentum, foreach": Row(optim.SGD, {**MOMENTUM, "foreach": True}),
    # Fused momentum fails, on one device too, where a parameter's first gradient comes late.
    "sgd, fused": Row(optim.SGD, {"lr": 0.1, "weight_decay": 0.01, "fused": True}),
    "momentum, maximize": Row(optim.SGD, {**MOMENTUM, "lr": 0.01, "maximize": True}),
    "nesterov": Row(optim.SGD, {**MOMENTUM, "nesterov": True}),
    "adam, amsgrad": Row(optim.Adam, {**ADAM, "amsgrad": True}),
    "adam, foreach": Row(optim.Adam, {**ADAM, "foreach": True}),
    "adam, maximize": Row(optim.Adam, {**ADAM, "maximize": True}),
    "adamw, fused": Row(optim.AdamW, {**ADAM, "fused": True}),
    "adagrad, fused": Row(optim.Adagrad, {**ADAM, "fused": True}),
    "adadelta": Row(optim.Adadelta, {"lr": 0.5, "eps": 1e-3}),
    "adamax": Row(optim.Adamax, ADAM),
    "nadam": Row(optim.NAdam, ADAM, resumes=False),
    "radam": Row(optim.RAdam, ADAM),
    "asgd": Row(optim.ASGD, {"lr": 0.05, "weight_decay": 0.01}, resumes=False),
    "adafactor": Row(
        optim.Adafactor, {"lr": 0.05, "eps": (1e-3, 1e-3)}, is_refused=True, takes_empty=False
    ),
    "lbfgs": Row(
        optim.LBFGS,
        {"lr": 0.05, "max_iter": 2, "tolerance_grad": 0.0, "tolerance_change": 0.0},
        is_refused=True,
        closure=True,
    ),
}
SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "": lambda optimizer: None,
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
    "warm-up": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.25, total_iters=4),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=40, cycle_momentum=False
    ),
}


def groups_of(grouped: bool, parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """All in one group, or vectors in one of their own."""
    if not grouped:
        return [{"params": [*parameters]}]
    vectors = [p for p in parameters if p.dim() < 2]
    slow = {"params": vectors, "weight_decay": 0.0, "lr": 0.02}
    return [{"params": [p for p in parameters if p.dim() >= 2]}, slow]
