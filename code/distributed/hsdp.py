"""HSDP, hybrid sharding: ZeRO-3 inside each host, and data parallelism between hosts.

    W[s] of each rank of a host → all_gather → W[s·N/H]
    dW[s·N/H]{partial over ranks} → reduce_scatter(avg), in a host → dW[s]{partial over hosts}
    dW[s]{partial over hosts} → all_reduce(avg), between hosts → dW[s]

Each of the H hosts holds the whole model, and its N/H ranks share it. Parameters are gathered where
links are fast. Only gradients travel between hosts, and each rank sends only its shard of them
(Zhao et al. 2023, §3.2.2). In the autograd graph this takes one more function. Every host has a
copy of each shard, and the transpose of copying is summing: an all-reduce.
"""

from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import broadcast_module
from distributed.runtime.mesh import mesh
from distributed.runtime.script import run_script
from distributed.zero3 import AllGather, Sharded


class Replicate(torch.autograd.Function):
    """W[s], equal on every host → W[s]; backward, dW[s]{partial over hosts} → dW[s], the mean."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, hosts: Group) -> torch.Tensor:
        ctx.hosts = hosts
        return shard.view_as(shard)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.hosts.all_reduce(gradient.clone(), "avg"), None


class ShardedInHost(Sharded):
    """A block of ZeRO-3 over `group`, the ranks of one host; `hosts` has one rank of each host.

    They are this rank's row and column of a `mesh`, so the ranks of `hosts` keep equal shards.
    All ranks start with the first host's values. Everything else is as in `Sharded`.
    """

    def __init__(self, module: nn.Module, group: Group, hosts: Group):
        broadcast_module(module, hosts)
        super().__init__(module, group)
        self.hosts = hosts

    def gather(self) -> torch.Tensor:
        """W[s] of each rank of this host → W[s·N/H]."""
        return AllGather.apply(Replicate.apply(self.shard, self.hosts), self.group)


def main(ranks: int = 4, per_host: int = 2, batch: int = 256, steps: int = 40) -> None:
    """Train on ranks that play several hosts: the losses of one device, few bytes between hosts."""
    from distributed.instruments.one_device import OneDevice
    from distributed.planner.traffic import between_hosts, elements_sent

    results = launch(train_rank, per_host, batch, steps, ranks=ranks)
    losses, inside, between, shards = results[0]
    OneDevice(batch, steps, depth=3).check(losses)
    print(f"a rank sends {inside:,} elements per step inside its host, {between:,} to other hosts")
    assert inside == sum(elements_sent(3, per_host, shards, resident_blocks=0).values())
    assert between == between_hosts(shards, host=0, hosts=ranks // per_host)


def train_rank(
    group: Group, per_host: int, batch: int, steps: int
) -> tuple[list[float], int, int, list[int]]:
    """One rank: losses of whole batches; elements sent per step inside its host, and between hosts;
    lengths of its shards.
    """
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.training import Alone, make_network, train_together

    inside, between = (RingGroup(part) for part in mesh(group, per_host))
    model = make_network(seed=group.rank, depth=3).double().to(group.device)
    for i, layer in enumerate(model):
        if [*layer.parameters()]:
            model[i] = ShardedInHost(layer, inside, between)
    trained = Alone(model, torch.optim.AdamW, lr=0.01)
    inside.trace, between.trace = in_host, out = Trace(group.rank), Trace(group.rank)
    losses = train_together(group, model, trained.step, batch, steps)
    each = 8 * steps  # float64
    return losses, in_host.sent // each, out.sent // each, [len(s) for s in model.parameters()]


if __name__ == "__main__":
    run_script(main)
