"""Models on the meta device: shapes without memory, made real one part at a time.

`with torch.device("meta"): model = Model()` takes no memory. Each rank then makes one block, cuts
out its shard, and frees the block before it makes the next.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from distributed.zero.flat_unit import placeholder

INSIDE = (
    "initialise= of {} wrote into its {}, which a module inside has: let it fill only the module's "
    "own parameters and buffers, because each module gets a turn"
)


def leave_meta(module: nn.Module, device: torch.device) -> set[torch.Tensor]:
    """Move what is on the meta device to `device`: the same objects, which have no values yet.

    They keep their attributes and hooks. ValueError, with its name, for one that cannot be moved.
    """
    names = {t: name for name, t in [*module.named_parameters(), *module.named_buffers()]}
    found = {tensor for tensor in names if tensor.is_meta}
    for tensor in found:
        new = placeholder(tensor, tensor.dtype, device)
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        new.__dict__.update(tensor.__dict__)
        if tensor.requires_grad:
            new._backward_hooks = tensor._backward_hooks
            new._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks
        try:
            torch.utils.swap_tensors(tensor, new)
        except RuntimeError as error:  # an LSTM has weak references, for example
            raise ValueError(
                f"{names[tensor]} can't leave the meta device: make the module that has it without "
                f"torch.device('meta') ({error})"
            ) from error
    return found


def own_tensors(part: nn.Module) -> dict[str, torch.Tensor]:
    """Name → parameter or buffer, without those of the modules inside."""
    return dict([*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)])


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


def has_blank(tensor: torch.Tensor) -> bool:
    """Whether the bits of an element are all 1, as before: NaN in a float, -1 in an integer."""
    bits = tensor.contiguous().view(-1).view(torch.uint8) == 255
    return bool(bits.view(-1, tensor.itemsize).all(1).any())


@torch.no_grad()
def materialise(
    module: nn.Module, wanted: Iterable[torch.Tensor], initialise: Callable[[nn.Module], None]
) -> None:
    """Give parameters and buffers from the meta device their first values, and nothing else.

    Each part of the module that holds a wanted one is initialised as a whole. It sees copies of its
    other tensors, which are as before afterward. Raises ValueError for a wanted one that has no
    value then, and for an `initialise` that writes into a module inside, whose own turn would undo
    that.
    """
    remaining = set(wanted)
    for path, part in module.named_modules():
        mine = own_tensors(part)
        if remaining.isdisjoint(mine.values()):
            continue
        kept = {tensor: tensor.data for tensor in mine.values() if tensor not in remaining}
        for tensor in mine.values():
            if tensor in kept:
                tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
            else:
                blank = torch.full((tensor.nbytes,), 255, dtype=torch.uint8, device=tensor.device)
                tensor.data = blank.view(tensor.dtype).view(tensor.shape)
        versions = {tensor: tensor._version for tensor in [*part.parameters(), *part.buffers()]}
        try:
            initialise(part)
        except RuntimeError as error:
            if "single memory location" in str(error):  # that of a placeholder
                raise ValueError(INSIDE.format(path or "the module", "parameters")) from error
            raise
        for name, tensor in [*part.named_parameters(), *part.named_buffers()]:
            if name not in mine and tensor._version != versions.get(tensor):
                raise ValueError(INSIDE.format(path or "the module", name))
        for name, tensor in mine.items():
            made = getattr(part, name)
            can_be_blank = made.is_floating_point() or made._version == versions.get(made)
            if tensor in remaining and can_be_blank and has_blank(made):
                raise ValueError(
                    f"{path}.{name} is on the meta device and has no value after initialise= "
                    f"of its {type(part).__name__}"
                )
            tensor.data = kept.get(tensor, made.data.to(tensor.device))
            setattr(part, name, tensor)  # the same object, should it have been replaced
        remaining.difference_update(mine.values())
    assert not remaining, "everything wanted is somewhere in the module"
