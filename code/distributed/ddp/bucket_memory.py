"""Memory of buckets: one buffer for all gradients of a dtype, cut into buckets in any order.

    buffer[n] of a dtype = first bucket, second, …

In a pass gradients come in an order that only the first pass shows, so buckets are made twice.
"""

from collections.abc import Sequence

import torch
from torch import nn

from distributed import Group
from distributed.bucketed_ddp import Bucket, fill_buckets


class BucketMemory:
    """A buffer for each dtype, as long as all gradients of these parameters together."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        bucket_bytes: int,
        first_bucket_bytes: int,
    ):
        self.bucket_sizes = bucket_bytes, first_bucket_bytes
        self.buffers = {
            dtype: group.empty(sum(p.numel() for p in parameters if p.dtype == dtype), dtype)
            for dtype in dict.fromkeys(p.dtype for p in parameters)
        }

    def buckets(self, order: Sequence[nn.Parameter]) -> list[Bucket]:
        """Buckets with the parameters in this order: new ones over the same memory."""
        used = dict.fromkeys(self.buffers, 0)
        buckets: list[Bucket] = []
        for parameters in fill_buckets(order, *self.bucket_sizes):
            dtype = parameters[0].dtype
            start, used[dtype] = used[dtype], used[dtype] + sum(p.numel() for p in parameters)
            part = self.buffers[dtype][start : used[dtype]]
            buckets.append(Bucket(len(buckets), parameters, part))
        return buckets


def order_of(
    root: int, order: Sequence[nn.Parameter], parameters: Sequence[nn.Parameter], group: Group
) -> list[nn.Parameter]:
    """The order of rank `root`, on every rank, as PyTorch does it."""
    index_of = {parameter: i for i, parameter in enumerate(parameters)}
    indices = torch.tensor([index_of[parameter] for parameter in order], device=group.device)
    return [parameters[i] for i in group.broadcast(indices, root).tolist()]
