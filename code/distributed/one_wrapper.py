"""A module has one wrapper: two of them would average its gradients twice.

DDP's rungs and ZeRO's optimizers are known by their hooks, FSDP by its kind of parameters, and
PyTorch's DDP only if it is the module itself.
"""

from typing import Any

from torch import nn
from torch.optim import Optimizer


def check_can_be_wrapped(module: nn.Module) -> None:
    """Raise ValueError for a module that is wrapped already, or whose gradients are sparse."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            weight = f"{name}.weight".lstrip(".")
            raise ValueError(f"module: {weight} gets sparse gradients: give it sparse=False")
    for name, parameter in module.named_parameters():
        hooks = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
        owners = [getattr(hook, "__self__", None) for hook in hooks]
        found: list[Any] = [o for o in owners if isinstance(o, nn.Module | Optimizer)]
        if hasattr(parameter, "placements"):
            found.append(parameter)  # a DTensor
        if isinstance(module, nn.parallel.DistributedDataParallel):
            found.append(module)
        if found:
            raise ValueError(
                f"module: {name} is in a {type(found[0]).__name__} already: use that one, or "
                "wrap copy.deepcopy(module)"
            )
