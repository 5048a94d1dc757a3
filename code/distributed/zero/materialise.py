"""Models on the meta device: shapes without memory, made real one part at a time.

`with torch.device("meta"): model = Model()` takes no memory, however large the model. Each rank
then makes one block, cuts out its shard, and frees the block before it makes the next.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn


def free_values(parameter: nn.Parameter, dtype: torch.dtype | None = None) -> None:
    """NaN instead of a parameter's values: in the same shape, but one element in memory."""
    dtype = dtype or parameter.dtype
    has_nan = dtype.is_floating_point or dtype.is_complex  # a quantized weight has none
    nothing = torch.full((), torch.nan if has_nan else 0, dtype=dtype, device=parameter.device)
    parameter.data = nothing.expand(parameter.shape)


def leave_meta(module: nn.Module, device: torch.device) -> dict[torch.Tensor, torch.Tensor]:
    """Replace parameters and buffers on the meta device by new ones on `device`: old → new.

    What was tied stays tied. The new ones have no values yet.
    """
    new: dict[torch.Tensor, torch.Tensor] = {}
    for part in module.modules():
        for name, old in [
            *part.named_parameters(recurse=False),
            *part.named_buffers(recurse=False),
        ]:
            if old.is_meta:
                if old not in new:
                    new[old] = _off_meta(old, device)
                setattr(part, name, new[old])
    return new


def _off_meta(old: torch.Tensor, device: torch.device) -> torch.Tensor:
    if not isinstance(old, nn.Parameter):
        return torch.empty_like(old, device=device)
    nothing = torch.full((), torch.nan, dtype=old.dtype, device=device)
    return nn.Parameter(nothing.expand(old.shape), old.requires_grad)


def by_reset_parameters(module: nn.Module) -> None:
    """Let a module make its own parameters and buffers. ValueError where its class cannot."""
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise ValueError(
            f"{type(module).__name__} is on the meta device and has no reset_parameters(): give "
            "initialise=, a function that fills the parameters and buffers of the module it is "
            "given, without those of the modules inside"
        )
    reset()


@torch.no_grad()
def materialise(
    module: nn.Module, wanted: Iterable[torch.Tensor], initialise: Callable[[nn.Module], None]
) -> None:
    """Give parameters and buffers from the meta device their first values, and nothing else.

    Each part of the module that holds a wanted one is initialised as a whole: what it has beside
    is made for that time, and forgotten. Raises ValueError for a wanted one that gets no values.
    """
    remaining = set(wanted)
    for path, part in module.named_modules():
        mine = dict([*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)])
        if remaining.isdisjoint(mine.values()):
            continue
        before = {name: tensor.data for name, tensor in mine.items()}
        for tensor in mine.values():
            tensor.data = _without_values(tensor)
        versions = {name: tensor._version for name, tensor in mine.items()}
        initialise(part)
        for name, tensor in mine.items():
            value = before[name]
            if tensor in remaining:
                value = getattr(part, name)
                written = value is not tensor or value._version > versions[name]
                if not _has_values(value, written):
                    raise ValueError(
                        f"{path}.{name} is on the meta device and has no value after initialise= "
                        f"of its {type(part).__name__}"
                    )
            tensor.data = value.to(tensor.device)
            setattr(part, name, tensor)  # the same object, should it have been replaced
        remaining.difference_update(mine.values())
    assert not remaining, "everything wanted is somewhere in the module"


def _without_values(like: torch.Tensor) -> torch.Tensor:
    """Memory in which one sees what has not been written, as far as the dtype has NaN."""
    new = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return new.fill_(torch.nan) if like.is_floating_point() else new


def _has_values(tensor: torch.Tensor, written: bool) -> bool:
    """Whether nothing is NaN; of a dtype without NaN, whether autograd knows that it is written."""
    return not tensor.isnan().any() if tensor.is_floating_point() else written
