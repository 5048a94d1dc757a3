"""Checkpoints of PyTorch's FSDP: what a file doesn't note, and how it shows all the same.

It has neither the optimizer's class, nor which states are one element for a whole parameter.
"""

from collections.abc import Mapping
from typing import Any

import torch

DECAY = "decoupled_weight_decay"
# What torch's learning-rate schedulers note in a group, beside the optimizer's own settings.
OF_SCHEDULES = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}


def scalar_states(model: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Keys of the states that are one element for a whole parameter.

    A key is one if a matrix has a state without dimensions under it. `model` and `states` are those
    of `checkpoint.Contents`.
    """
    of_matrices = [states[name] for name, entry in model.items() if entry.size and name in states]
    return {key for entries in of_matrices for key, entry in entries.items() if not entry.size}


def check_settings(
    optimizer: torch.optim.Optimizer, groups: Mapping[str, Mapping[str, Any]], path: Any
) -> None:
    """Raise ValueError if the groups of a file have settings that this optimizer doesn't have."""
    for number, group in enumerate(optimizer.param_groups):
        read = groups.get(str(number), {})
        unknown = read.keys() - group.keys() - OF_SCHEDULES
        if read.get(DECAY) not in (None, optimizer.defaults.get(DECAY)):
            unknown.add(f"{DECAY}={read[DECAY]}")  # Adam isn't AdamW
        if unknown:
            has = f"{type(optimizer).__name__} has no {', '.join(sorted(unknown))}"
            raise ValueError(f"{path} is of another optimizer: {has}")
