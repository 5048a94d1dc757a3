"""Buckets: gradients of many parameters in one flat tensor, to be reduced in one go.

    flat[n] = gradient of the first parameter, of the second, …; each `parameter.grad` is a view

A message has a price of its own, so few large all-reduces cost less than many small ones. But a
bucket can leave only when its last gradient is there, so one bucket for all leaves too late.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from distributed.group import Group


class Bucket:
    """Gradients of some parameters of one dtype; `waiting` are those that have not come yet."""

    def __init__(self, index: int, parameters: list[torch.nn.Parameter], group: Group):
        self.index = index
        self.parameters = parameters
        dtype = parameters[0].dtype
        self.flat = group.empty(sum(p.numel() for p in parameters), dtype).zero_()
        sizes = [p.numel() for p in parameters]
        self.views = {
            p: view.view(p.shape)
            for p, view in zip(parameters, self.flat.split(sizes), strict=True)
        }
        self.waiting = set(parameters)

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Move a gradient that came into the bucket, if it is not there already."""
        view = self.views[parameter]
        assert parameter.grad is not None
        if parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
            parameter.grad = view

    def do_without(self, parameter: torch.nn.Parameter) -> None:
        """No gradient comes in this pass: what is there stays, and nothing counts as zero."""
        if parameter.grad is None:
            self.views[parameter].zero_()
        self.waiting.discard(parameter)


Hook = Callable[[Group, Bucket], Any]  # starts to reduce bucket.flat; what it returns has wait()


def all_reduce_hook(group: Group, bucket: Bucket) -> Any:
    """The mean over all ranks: what DDP does when it is given no other hook."""
    return group.all_reduce(bucket.flat, "avg", async_op=True)


def fill(
    parameters: Sequence[torch.nn.Parameter], group: Group, most: int, first: int
) -> list[Bucket]:
    """Buckets of up to `most` bytes, the very first of up to `first`, in the given order.

    Each holds one dtype. A parameter that is larger than a bucket has one of its own.
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
    return [Bucket(i, chosen, group) for i, chosen in enumerate(lists)]
