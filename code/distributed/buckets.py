"""Buckets: gradients of many parameters in one flat tensor, to be reduced in one go.

    flat[n] = gradient of the first parameter, of the second, …; each `parameter.grad` is a view

A message has a price of its own, so few large all-reduces cost less than many small ones. But a
bucket can leave only when its last gradient is there, so one bucket for all leaves too late.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from distributed import Group


class Bucket:
    """Gradients of some parameters of one dtype; `waiting` are those that have not come yet."""

    def __init__(self, index: int, parameters: list[torch.nn.Parameter], flat: torch.Tensor):
        self.index = index
        self.parameters = parameters
        self.flat = flat
        sizes = [p.numel() for p in parameters]
        self.views = {
            p: view.view(p.shape)
            for p, view in zip(parameters, self.flat.split(sizes), strict=True)
        }
        self.waiting = set(parameters)

    @torch.no_grad()  # a pass with create_graph=True would record the copy
    def take(self, parameter: torch.nn.Parameter) -> None:
        """Move a gradient that is there into the bucket, if it is not in it already; else zeros."""
        view = self.views[parameter]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
            parameter.grad = view

    def do_without(self, parameter: torch.nn.Parameter) -> None:
        """No gradient comes in this pass: what is there stays, and nothing counts as zero."""
        self.take(parameter)
        self.waiting.discard(parameter)


Hook = Callable[[Group, Bucket], Any]  # starts to reduce bucket.flat; what it returns has wait()


def all_reduce_hook(group: Group, bucket: Bucket) -> Any:
    """The mean over all ranks: what DDP does when it is given no other hook."""
    flat = torch.view_as_real(bucket.flat) if bucket.flat.is_complex() else bucket.flat
    return group.all_reduce(flat, "avg", async_op=True)


Memory = dict[torch.dtype, torch.Tensor]  # flat[n] for the gradients of all parameters of a dtype


def make_memory(parameters: Iterable[torch.nn.Parameter], group: Group) -> Memory:
    """As many zeros as gradients have numbers, where the group's collectives reach them best."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return {dtype: group.empty(size, dtype).zero_() for dtype, size in sizes.items()}


def fill(
    parameters: Sequence[torch.nn.Parameter], memory: Memory, most: int, first: int
) -> list[Bucket]:
    """Buckets of up to `most` bytes, the very first of up to `first`, in the given order.

    Each holds one dtype and is a part of its `memory`, so buckets that are filled anew take no
    more. A parameter that is larger than a bucket has one of its own.
    """
    lists: list[list[torch.nn.Parameter]] = []
    open_list: dict[torch.dtype, int] = {}  # which list is being filled, for each dtype
    for parameter in parameters:
        at = open_list.get(parameter.dtype)
        limit = first if at == 0 else most
        if at is None or sum(p.nbytes for p in lists[at]) + parameter.nbytes > limit:
            at = open_list[parameter.dtype] = len(lists)
            lists.append([])
        lists[at].append(parameter)
    used = dict.fromkeys(memory, 0)
    buckets = []
    for i, chosen in enumerate(lists):
        dtype, size = chosen[0].dtype, sum(p.numel() for p in chosen)
        buckets.append(Bucket(i, chosen, memory[dtype][used[dtype] : used[dtype] + size]))
        used[dtype] += size
    return buckets
