"""Traffic of each ZeRO stage in a step, phase by phase.

With N ranks and Ψ parameters, a ring's reduce-scatter or all-gather sends Ψ(N − 1)/N per rank:

    DDP     backward: reduce-scatter + all-gather of gradients                         2Ψ(N − 1)/N
    ZeRO-1                                  step: reduce-scatter, then all-gather      2Ψ(N − 1)/N
    ZeRO-2  backward: reduce-scatter        step: all-gather of parameters             2Ψ(N − 1)/N
    ZeRO-3  forward: all-gather             backward: all-gather, reduce-scatter       3Ψ(N − 1)/N

See Rajbhandari et al. 2020, §7. ZeRO-3's backward pass doesn't gather what is still gathered.
"""

from collections.abc import Sequence

from distributed.all_reduce import ring_sent

PHASES = ("forward", "backward", "step")


def elements_sent(
    stage: int, ranks: int, blocks: Sequence[int], root: int = 0, resident_blocks: int = 2
) -> dict[str, int]:
    """Elements that each rank sends in a step: phase → elements, for stage 0 (DDP) to 3.

    `blocks` are the shard lengths of the blocks, in the order of the forward pass. `root` is the
    shard length of what stays gathered for the whole step. Stages 0 to 2 depend only on their sum.
    The last `resident_blocks` stay gathered between the passes (ZeRO-3: the number of buffers).
    """
    shards = root + sum(blocks)
    again = sum(blocks[: max(0, len(blocks) - resident_blocks)])
    of_shards = {
        0: (0, 2 * shards, 0),
        1: (0, 0, 2 * shards),
        2: (0, shards, shards),
        3: (shards, again + shards, 0),
    }[stage]
    return {phase: (ranks - 1) * n for phase, n in zip(PHASES, of_shards, strict=True)}


def between_hosts(shards: Sequence[int], host: int, hosts: int) -> int:
    """Elements that a rank of this host sends to other hosts in a step: a ring all-reduce of each.

    `shards` are the lengths of its shards of all units. If the number of hosts divides each of
    them, the result is 2(hosts − 1)/hosts of their sum.
    """
    return sum(ring_sent(shard, host, hosts).elements for shard in shards)
