"""Equal replicas: copy rank 0's weights and buffers to all ranks, if they have the same module.

If ranks had different modules, they would mix up their messages or train different networks. So
before the first gradient, each rank compares a description of its tensors with rank 0's, as text.
A wrapper also checks that its module isn't wrapped already, because two wrappers would average its
gradients twice.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from distributed import Group, launch
from distributed.runtime.script import run_script


def check_same_model(module: nn.Module, group: Group) -> None:
    """Raise ValueError, naming the tensor, if this rank's module differs from rank 0's."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    check_same_lines("tensor", [describe(name, tensor) for name, tensor in tensors], group)


def describe(name: str, tensor: torch.Tensor) -> str:
    """Name, dtype, shape, and anything unusual: "0.weight float32[3, 2], frozen"."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(
            f"module: {name} is sparse or quantized, and cannot be sent: make it dense"
        )
    strides = "" if tensor.is_contiguous() else f" with strides {tensor.stride()}"
    frozen = ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    return f"{name} {str(tensor.dtype)[6:]}{list(tensor.shape)}{strides}{frozen}"


def check_same_lines(what: str, lines: list[str], group: Group) -> None:
    """Raise ValueError for the first line, on a tensor or a parameter (`what`), that differs."""
    theirs = broadcast_text("\n".join(lines), group).split("\n")
    mine = "\n".join(lines).split("\n")
    for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            raise ValueError(f"module: {what} {number} is {a} on rank {group.rank}, {b} on rank 0")
    if len(mine) != len(theirs):
        raise ValueError(f"module: rank {group.rank} and rank 0 have different numbers of {what}s")


def broadcast_text(text: str, group: Group) -> str:
    """Rank 0's text, on every rank."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8)
    size = group.broadcast(torch.tensor([len(data)], device=group.device)).item()
    data = data if group.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
    return bytes(group.broadcast(data.to(group.device)).tolist()).decode()


def broadcast_module(module: nn.Module, group: Group) -> None:
    """Copy rank 0's weights and buffers to every rank."""
    check_same_model(module, group)
    for tensor in [*module.parameters(), *module.buffers()]:
        group.broadcast(tensor.data)


def check_can_be_wrapped(module: nn.Module) -> None:
    """Raise ValueError for a module that is wrapped already, and for two options of embeddings.

    Those are sparse gradients, and max_norm, with which the forward pass writes into the weight.
    The DDP versions and ZeRO's optimizers are known by their hooks, FSDP by its kind of parameters,
    and PyTorch's DDP only if it is the module itself.
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
    """Call these hooks after all others that their parameters have by now.

    Others may change the gradient. So a hook that reduces it has to come last, or they would write
    into what is already on its way, and each rank would get different numbers.
    """
    for handle in hooks:
        of_parameter: Any = handle.hooks_dict_ref()
        of_parameter[handle.id] = of_parameter.pop(handle.id)


def refuse_to_copy(wrapper: nn.Module) -> Any:
    """For `__getstate__`: autograd's hooks stay with the parameters that they were given to."""
    name = type(wrapper).__name__
    raise TypeError(f"a {name} cannot be copied or saved: wrap a copy of its module")


def view_as(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """View of part[n] with the parameter's shape and strides, as autograd gives to gradients.

    A fused optimizer walks through a weight and its gradient in memory order, so both need the
    same one. A parameter with gaps or overlaps gets the strides that `empty_like` would give it.
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


def main(ranks: int = 4) -> None:
    """Draw different weights on each rank, and then copy those of rank 0."""

    def first_weight(group: Group) -> tuple[float, float]:
        torch.manual_seed(group.rank)
        module = nn.Linear(2, 1)
        drawn = module.weight[0, 0].item()
        broadcast_module(module, group)
        return drawn, module.weight[0, 0].item()

    drawn, now = zip(*launch(first_weight, ranks=ranks), strict=True)
    print("drawn:", [round(w, 3) for w in drawn])
    print("now:  ", [round(w, 3) for w in now])
    assert {*now} == {drawn[0]}


if __name__ == "__main__":
    run_script(main)
