"""What each stage of ZeRO sends in a step, phase by phase: the formula, and the counter.

With N ranks and Ψ parameters, a ring's reduce-scatter or all-gather sends Ψ(N − 1)/N a rank:

    DDP     backward: reduce-scatter + all-gather of gradients                         2Ψ(N − 1)/N
    ZeRO-1                                  step: reduce-scatter, then all-gather      2Ψ(N − 1)/N
    ZeRO-2  backward: reduce-scatter        step: all-gather of parameters             2Ψ(N − 1)/N
    ZeRO-3  forward: all-gather             backward: all-gather, reduce-scatter       3Ψ(N − 1)/N

(Rajbhandari et al. 2020, §7.) What is still gathered from the forward pass need not come again.
"""

from collections.abc import Sequence

import torch

from distributed import Group, launch
from distributed.all_reduce import ring_sent
from distributed.ddp import DistributedDataParallel
from distributed.model_states import STAGES
from distributed.ring_group import RingGroup
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace
from distributed.sharded import ShardedOptimizer
from distributed.stages import CLASSES
from distributed.zero3 import Zero3

PHASES = ("forward", "backward", "step")


def elements_sent(
    stage: int, ranks: int, blocks: Sequence[int], root: int = 0, still_here: int = 2
) -> dict[str, int]:
    """Elements that each rank sends in a step: phase → elements, for stage 0 (DDP) to 3.

    `blocks` are the lengths of a shard of each block, in the order of the forward pass, and `root`
    that of what stays for the whole step. Stages 0 to 2 care only for their sum. `still_here` of
    the last blocks are gathered once (ZeRO-3: as many as there are buffers).
    """
    shards = root + sum(blocks)
    again = sum(blocks[: max(0, len(blocks) - still_here)])
    of_shards = {
        0: (0, 2 * shards, 0),
        1: (0, 0, 2 * shards),
        2: (0, shards, shards),
        3: (shards, again + shards, 0),
    }[stage]
    return {phase: (ranks - 1) * n for phase, n in zip(PHASES, of_shards, strict=True)}


def ddp_sent(ddp: DistributedDataParallel) -> dict[str, int]:
    """Elements that this rank sends in a step: phase → elements, for DDP's buckets around a ring.

    Unlike shards, a ring's parts have no padding: they differ by an element where N does not divide
    a bucket, and so do ranks.
    """
    rank, ranks = ddp.group.rank, ddp.group.size
    sizes = [bucket.buffer.numel() for bucket in ddp.buckets]
    sent = sum(ring_sent(size, rank, ranks).elements for size in sizes)
    return dict(zip(PHASES, (0, sent, 0), strict=True))


def between_hosts(shards: Sequence[int], host: int, hosts: int) -> int:
    """Elements that a rank of this host sends to other hosts in a step: a ring all-reduce of each.

    `shards` are the lengths of its shards of all units. It is 2(hosts − 1)/hosts of their sum where
    hosts divide each of them.
    """
    return sum(ring_sent(shard, host, hosts).elements for shard in shards)


def shard_sizes(zero: ShardedOptimizer) -> tuple[list[int], int]:
    """The lengths of this rank's shard of each block, and of the root, for `elements_sent`."""
    if not isinstance(zero, Zero3):
        return [unit.layout.shard_size for unit in zero.units], 0
    blocks = [sum(unit.layout.shard_size for unit in block.units) for block in zero.blocks]
    return blocks, sum(unit.layout.shard_size for unit in zero.root.units)


def count_sent(
    zero: ShardedOptimizer | DistributedDataParallel, rows: Sequence[int]
) -> dict[str, int]:
    """Bytes that this rank sends in one step on these rows of the digits: phase → bytes, counted.

    `zero` works on a `RingGroup`: a backend's own collectives are not seen.
    """
    from distributed.workbench.data import digits

    images, labels = (torch.from_numpy(array)[rows] for array in digits())
    zero.group.trace = trace = Trace(zero.group.rank)
    marks = [0]
    model = zero if isinstance(zero, DistributedDataParallel) else zero.module
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    marks.append(trace.sent)
    loss.backward()
    marks.append(trace.sent)
    if isinstance(zero, ShardedOptimizer):  # DDP has sent all that it sends
        zero.step()
    marks.append(trace.sent)
    zero.group.trace = None
    return {phase: marks[i + 1] - marks[i] for i, phase in enumerate(PHASES)}


def count_on_rank(
    group: Group, stage: int, depth: int = 6
) -> tuple[dict[str, int], dict[str, int]]:
    """One rank: bytes predicted and counted for a network of `depth` layers, in float32."""
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network

    model, ring = make_network(width=128, depth=depth), RingGroup(group)
    rows = next(iter(batches(1797, 16, 1))).tolist()
    if stage == 0:
        ddp = DistributedDataParallel(model, ring)
        count_sent(ddp, rows)  # in the first step ranks agree on an order of buckets, too
        predicted, counted = ddp_sent(ddp), count_sent(ddp, rows)
    else:
        zero = CLASSES[stage](model, torch.optim.Adam, ring)
        predicted = elements_sent(stage, group.size, *shard_sizes(zero))
        counted = count_sent(zero, rows)
    return {phase: 4 * n for phase, n in predicted.items()}, counted


def main(ranks: int = 4, depth: int = 6) -> None:
    """Each stage's bytes, counted, are those of the formula, exactly."""
    for stage, name in enumerate(STAGES):
        for predicted, counted in launch(count_on_rank, stage, depth, ranks=ranks, device="cpu"):
            assert predicted == counted, (predicted, counted)
        each = ", ".join(f"{phase} {size:,}" for phase, size in counted.items())
        print(f"{name}: {each}; in all {sum(counted.values()):,} bytes from each rank")


if __name__ == "__main__":
    run_script(main)
