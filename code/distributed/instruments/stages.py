"""The stages of ZeRO, by their numbers: 0 is `DistributedDataParallel`, and no optimizer."""

from collections.abc import Callable

from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.stage1 import Zero1
from distributed.zero.stage2 import Zero2
from distributed.zero.stage3 import Zero3

CLASSES: dict[int, Callable[..., ShardedOptimizer]] = {1: Zero1, 2: Zero2, 3: Zero3}
