"""Equal replicas: copy rank 0's weights and buffers to all ranks, if they have the same module.

If ranks had different modules, they would mix up their messages or train different networks. So
before the first gradient, each rank compares a description of its tensors with rank 0's, as text.
"""

import torch
from torch import nn

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
