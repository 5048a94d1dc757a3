"""Traffic of DDP and the stages of ZeRO: bytes sent per phase of a step, next to the formula.

Bytes are counted when a message is sent, so everything runs on a `RingGroup`: a backend's own
collectives can't be counted. The formulas are those of `traffic` and of the ring.
"""

from collections.abc import Sequence

import torch

from distributed import Group, launch
from distributed.all_reduce import ring_sent
from distributed.ddp import DistributedDataParallel
from distributed.model_states import STAGES
from distributed.planner.traffic import PHASES, elements_sent
from distributed.ring_group import RingGroup
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches, digits
from distributed.workbench.training import make_network
from distributed.zero import BY_STAGE
from distributed.zero.sharded import ShardedOptimizer
from distributed.zero.stage3 import Zero3


def ddp_sent(ddp: DistributedDataParallel) -> dict[str, int]:
    """Elements that this rank sends in a step: phase → elements, for DDP's buckets around a ring.

    Unlike shards, a ring's parts have no padding. If N doesn't divide a bucket, their sizes differ
    by one element, and so what the ranks send differs.
    """
    rank, ranks = ddp.group.rank, ddp.group.size
    sizes = [bucket.buffer.numel() for bucket in ddp.buckets]
    sent = sum(ring_sent(size, rank, ranks).elements for size in sizes)
    return dict(zip(PHASES, (0, sent, 0), strict=True))


def shard_sizes(zero: ShardedOptimizer) -> tuple[list[int], int]:
    """The lengths of this rank's shard of each block, and of the root, for `elements_sent`."""
    if not isinstance(zero, Zero3):
        return [unit.layout.shard_size for unit in zero.units], 0
    blocks = [sum(unit.layout.shard_size for unit in block.units) for block in zero.blocks]
    return blocks, sum(unit.layout.shard_size for unit in zero.root.units)


def count_sent(
    zero: ShardedOptimizer | DistributedDataParallel, rows: Sequence[int]
) -> dict[str, int]:
    """Bytes that this rank sends in one step on these rows of the digits: phase → bytes."""
    images, labels = (torch.from_numpy(array)[rows] for array in digits())
    zero.group.trace = trace = Trace(zero.group.rank)
    marks = [0]
    model = zero if isinstance(zero, DistributedDataParallel) else zero.module
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    marks.append(trace.sent)
    loss.backward()
    marks.append(trace.sent)
    if isinstance(zero, ShardedOptimizer):  # DDP sends nothing after the backward pass
        zero.step()
    marks.append(trace.sent)
    zero.group.trace = None
    return {phase: marks[i + 1] - marks[i] for i, phase in enumerate(PHASES)}


def count_on_rank(
    group: Group, stage: int, depth: int = 6
) -> tuple[dict[str, int], dict[str, int]]:
    """One rank: bytes predicted and counted for a network of `depth` layers, in float32."""
    model, ring = make_network(width=128, depth=depth), RingGroup(group)
    rows = next(iter(batches(1797, 16, 1))).tolist()
    if stage == 0:
        ddp = DistributedDataParallel(model, ring)
        count_sent(ddp, rows)  # in the first step, ranks also agree on an order of buckets
        predicted, counted = ddp_sent(ddp), count_sent(ddp, rows)
    else:
        zero = BY_STAGE[stage](model, torch.optim.Adam, ring)
        predicted = elements_sent(stage, group.size, *shard_sizes(zero))
        counted = count_sent(zero, rows)
    return {phase: 4 * n for phase, n in predicted.items()}, counted


def main(ranks: int = 4, depth: int = 6) -> None:
    """Count each stage's bytes, which equal those of the formula exactly."""
    for stage, name in enumerate(STAGES):
        for predicted, counted in launch(count_on_rank, stage, depth, ranks=ranks, device="cpu"):
            assert predicted == counted, (predicted, counted)
        each = ", ".join(f"{phase} {size:,}" for phase, size in counted.items())
        print(f"{name}: {each}; in all {sum(counted.values()):,} bytes from each rank")


if __name__ == "__main__":
    run_script(main)
