"""A group: what one rank can do together with the others.

Every rank holds a `Group`. It knows its own number and how many ranks there are, and it can add,
average or copy arrays across all of them.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

Array = TypeVar("Array", torch.Tensor, np.ndarray)

REDUCTIONS = {  # gloo has no average of its own: it is a sum, divided
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class Group:
    """The ranks that work together, as one of them sees them.

    `rank` is the number of this process, `size` how many there are (the world size), `device`
    where its tensors live. Each method works in place, returns its array, and must be called by
    every rank with the same shape and dtype.
    """

    def __init__(self, device: torch.device):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device

    def all_reduce(self, x: Array, op: str = "sum") -> Array:
        """x[...]{partial over ranks} → x[...], equal on every rank.

        `op` is "sum", "avg", "max" or "min". Raises ValueError for another one, and for "avg" of
        integers, which would have to round.
        """
        if op not in REDUCTIONS:
            raise ValueError(f"op={op!r}: choose one of {', '.join(REDUCTIONS)}")
        with _as_tensor(x) as tensor:
            if op == "avg" and not tensor.is_floating_point():
                raise ValueError(f"op='avg' needs floating-point numbers, x has {tensor.dtype}")
            dist.all_reduce(tensor, REDUCTIONS[op])
            if op == "avg":
                tensor /= self.size
        return x

    def broadcast(self, x: Array, source: int = 0) -> Array:
        """x[...] of rank `source` → x[...] on every rank. Raises ValueError for no such rank."""
        if not 0 <= source < self.size:
            raise ValueError(f"source={source}: the ranks are 0 to {self.size - 1}")
        with _as_tensor(x) as tensor:
            dist.broadcast(tensor, source)
        return x

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()


@contextlib.contextmanager
def _as_tensor(x: torch.Tensor | np.ndarray) -> Iterator[torch.Tensor]:
    """x as a contiguous tensor on the same memory; what has gaps is copied in, and back out."""
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    view = torch.from_numpy(x) if isinstance(x, np.ndarray) else x.detach()
    tensor = view.contiguous()
    yield tensor
    if tensor is not view and tensor.data_ptr() != view.data_ptr():
        view.copy_(tensor)
