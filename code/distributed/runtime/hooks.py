"""Hooks on gradients: one wrapper for a module, called after all other hooks, and never copied.

Two wrappers would average a module's gradients twice. One whose hooks come too early would send
gradients that other hooks still change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle


def check_can_be_wrapped(module: nn.Module) -> None:
    """Raise ValueError if a module is wrapped already, or for two options of embeddings.

    Those are sparse gradients, and max_norm, with which the forward pass writes into the weight.
    The DDP versions and ZeRO's optimizers are detected by their hooks, FSDP by the type of its
    parameters, and PyTorch's DDP only if it is the module itself.
    """
    for name, part in module.named_modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
            continue
        weight = f"{name}.weight".lstrip(".")
        if part.sparse:
            raise ValueError(f"module: {weight} gets sparse gradients: give it sparse=False")
        if part.max_norm is not None:
            raise ValueError(
                f"module: {weight} has max_norm={part.max_norm}, and each rank would renormalize "
                "only its own rows: leave max_norm out, and bound vectors behind the lookup"
            )
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


def call_last(hooks: Iterable[RemovableHandle]) -> None:
    """Call these hooks after all other hooks that their parameters have now.

    Other hooks may change the gradient. So a hook that reduces it has to come last, or they would
    write into a message that is being sent, and each rank would get different numbers.
    """
    for handle in hooks:
        of_parameter: Any = handle.hooks_dict_ref()
        of_parameter[handle.id] = of_parameter.pop(handle.id)


def parts_of(output: Any) -> Iterator[Any]:
    """Tensors and other objects in the output of a module, whose gradients a wrapper waits for.

    It looks into what `torch.utils._pytree` knows, such as tuples and dicts, into dataclasses, and
    into the attributes of other objects.
    """
    for part in tree_leaves(output):
        yield part
        if is_dataclass(part):
            yield from parts_of([getattr(part, field.name) for field in fields(part)])
        elif not isinstance(part, torch.Tensor):
            yield from tree_leaves(getattr(part, "__dict__", None))


def refuse_to_copy(wrapper: nn.Module) -> Any:
    """`__getstate__` of a wrapper: its hooks stay with their parameters, so it can't be copied."""
    name = type(wrapper).__name__
    raise TypeError(f"a {name} cannot be copied or saved: wrap a copy of its module")


def view_as(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """View of part[n] with the parameter's shape and strides, as autograd gives to gradients.

    A fused optimizer walks through a weight and its gradient in memory order, so both need the
    same one. A parameter with gaps or overlaps gets the strides that `empty_like` would give it.
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return part.as_strided(parameter.shape, strides)
