"""ZeRO's stages and HSDP: optimizers that keep a shard of the model's states on each rank."""

from distributed.zero.stage1 import Zero1
from distributed.zero.stage2 import Zero2
from distributed.zero.stage3 import HSDP, Zero3

BY_STAGE = {1: Zero1, 2: Zero2, 3: Zero3}

__all__ = ["BY_STAGE", "HSDP", "Zero1", "Zero2", "Zero3"]
