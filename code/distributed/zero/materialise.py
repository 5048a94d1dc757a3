"""Models on the meta device: shapes without memory, made real one part at a time.

`with torch.device("meta"): model = Model()` takes no memory. Each rank then makes one block, cuts
out its shard, and frees the block before it makes the next.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from distributed.zero.flat_unit import placeholder

OWN = "let it fill only the module's own parameters and buffers, because each module gets a turn"
NO_VALUE = "{}.{} is on the meta device and has no value after initialise= of its {}"


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


def named_tensors(part: nn.Module, recurse: bool) -> dict[str, torch.Tensor]:
    """Name → parameter or buffer, with or without those of the modules inside."""
    return dict([*part.named_parameters(recurse=recurse), *part.named_buffers(recurse=recurse)])


@torch.no_grad()
def materialise(
    module: nn.Module, wanted: Iterable[torch.Tensor], initialise: Callable[[nn.Module], None]
) -> None:
    """Give parameters and buffers from the meta device their first values, and nothing else.

    Each part of the module that holds a wanted one is initialised as a whole. It sees copies of its
    other tensors, which are as before afterward. Raises ValueError for a wanted one that has no
    value then, and for a write into a module inside, whose own turn would undo it. If torch
    refuses that write, because sharded parameters have no memory, its error gets a note.
    """
    remaining = set(wanted)
    for path, part in module.named_modules():
        own = named_tensors(part, recurse=False)
        if remaining.isdisjoint(own.values()):
            continue
        kept = {tensor: tensor.data for tensor in own.values() if tensor not in remaining}
        for tensor in own.values():
            tensor.data = kept[tensor].clone() if tensor in kept else blank(tensor)
        before = {tensor: tensor._version for tensor in named_tensors(part, recurse=True).values()}
        try:
            initialise(part)
        except RuntimeError as error:
            error.add_note(f"in initialise= of {path or 'the module'}: {OWN}")
            raise
        for name, tensor in named_tensors(part, recurse=True).items():
            if name not in own and tensor._version != before.get(tensor):
                where = f"{path or 'the module'} wrote into {name}"
                raise ValueError(f"initialise= of {where}, of a module inside: {OWN}")
        for name, tensor in own.items():
            made = getattr(part, name)  # may be another object
            is_written = made._version != before.get(made) and not made.is_floating_point()
            if tensor in remaining and not is_written and has_blank(made):
                raise ValueError(NO_VALUE.format(path, name, type(part).__name__))
            tensor.data = kept.get(tensor, made.data.to(tensor.device))
            setattr(part, name, tensor)
        remaining.difference_update(own.values())
    assert not remaining, "everything wanted is somewhere in the module"


def blank(like: torch.Tensor) -> torch.Tensor:
    """Memory of a tensor's own in which each bit is 1: NaN in a float, -1 in an integer."""
    bits = torch.full((like.nbytes,), 255, dtype=torch.uint8, device=like.device)
    return bits.view(like.dtype).view(like.shape)


def has_blank(tensor: torch.Tensor) -> bool:
    """Whether an element is still as `blank` made it."""
    bits = tensor.contiguous().view(-1).view(torch.uint8) == 255
    return bool(bits.view(-1, tensor.itemsize).all(1).any())
