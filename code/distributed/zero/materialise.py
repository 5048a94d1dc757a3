"""Models on the meta device: shapes without memory, made real one part at a time.

`with torch.device("meta"): model = Model()` takes no memory. Each rank then makes one block, cuts
out its shard, and frees the block before it makes the next.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from distributed.zero.flat_unit import placeholder

OWN = "may fill only the module's own parameters and buffers, because each module gets a turn"
NO_VALUE = "{} is on the meta device and has no value of its shape after {}"


def leave_meta(module: nn.Module, device: torch.device) -> set[torch.Tensor]:
    """Move what is on the meta device to `device`: the same objects, which have no values yet.

    They keep their attributes and hooks. ValueError, with its name, for one that cannot be moved.
    """
    names = {t: name for name, t in [*module.named_parameters(), *module.named_buffers()]}
    found = {tensor for tensor in names if tensor.is_meta}
    for tensor in found:
        data = placeholder(tensor, tensor.dtype, device)
        new = torch.Tensor._make_subclass(type(tensor), data, tensor.requires_grad)
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
            "initialise=, which fills a module's own parameters and buffers, not those inside"
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

    Each module that has a wanted one is initialised as a whole. It sees copies of its other
    tensors, which are as before afterward. So a module is initialised again for each call that
    wants a part of it, and must not compute one tensor from another's random values. Raises
    ValueError for a wanted one that has no value then, and for a write into a module inside, whose
    own turn would undo it. If torch refuses that write, because sharded parameters have no memory,
    its error gets a note.
    """
    remaining = set(wanted)
    for path, part in module.named_modules():
        if own := remaining.intersection(named_tensors(part, recurse=False).values()):
            fill(part, path, own, initialise)
            remaining -= own


def fill(
    part: nn.Module, path: str, wanted: set[torch.Tensor], initialise: Callable[[nn.Module], None]
) -> None:
    """Initialise one module: on `blank` memory for what is wanted, and on copies of the rest."""
    own = named_tensors(part, recurse=False)
    data = {tensor: tensor.data for tensor in own.values()}
    for tensor in own.values():
        tensor.data = blank(tensor) if tensor in wanted else tensor.data.clone()
    before = {t: (t._version, t.data_ptr()) for t in named_tensors(part, recurse=True).values()}
    where = f"initialise= of {path or 'the module'}"
    try:
        initialise(part)
        for name, tensor in named_tensors(part, recurse=True).items():
            if "." in name and (tensor._version, tensor.data_ptr()) != before.get(tensor):
                raise ValueError(f"{where} wrote into {name}, of a module inside: it {OWN}")
        for name, tensor in own.items():
            made = getattr(part, name)
            if tensor in wanted:
                if not has_value(made, tensor, before.get(made)):
                    raise ValueError(NO_VALUE.format(f"{path}.{name}".lstrip("."), where))
                data[tensor] = made.data.to(tensor.device)
    except RuntimeError as error:
        error.add_note(f"in {where}, which {OWN}")
        raise
    finally:
        for name, tensor in own.items():
            tensor.data = data[tensor]
            setattr(part, name, tensor)  # the same object, should it have been replaced


def has_value(made: Any, like: torch.Tensor, before: tuple[int, int] | None) -> bool:
    """Whether this has the shape, and each element is another than `blank` made it.

    For what has no NaN, as integers, it is enough that something was written: -1 can be a value.
    """
    if made is None or made.shape != like.shape:
        return False
    bits = made.contiguous().view(-1).view(torch.uint8) == 255
    is_complete = not bits.view(-1, made.itemsize).all(1).any()
    has_nan = made.is_floating_point() or made.is_complex()
    is_written = before is None or before[0] != made._version
    return is_complete or (is_written and not has_nan)


def blank(like: torch.Tensor) -> torch.Tensor:
    """Memory of a tensor's own in which each bit is 1: NaN in a float, -1 in an integer."""
    bits = torch.full((like.nbytes,), 255, dtype=torch.uint8, device=like.device)
    return bits.view(like.dtype).view(like.shape)
