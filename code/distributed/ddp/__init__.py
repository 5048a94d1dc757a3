"""DistributedDataParallel: the buckets of the lesson, and what real programs need besides."""

from distributed.ddp.wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
