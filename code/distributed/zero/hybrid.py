"""HSDP: ZeRO-3 inside of each host, and the same on every host.

    dW[s·N/H]{partial over all ranks} → reduce_scatter(avg), in a host → dW[s]{partial over hosts}
    dW[s]{partial over hosts} → all_reduce(avg), between hosts → dW[s]

Gathering stays where links are fast. Between hosts go only gradients, once a step, and each rank
sends those of its own shard ("hybrid sharding": Zhao et al. 2023, §3.2.2).
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.replicas import check_same_model
from distributed.runtime.mesh import mesh
from distributed.runtime.script import run_script
from distributed.zero.flat_unit import FlatUnit
from distributed.zero.sharded import Gradients
from distributed.zero.stage3 import Zero3


class HSDP(Zero3):
    """Zero3 over `group`, the ranks of one host; `replicas` hold what this rank holds.

    They are this rank's row and column of a mesh of hosts: see `mesh`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group,
        replicas: Group,
        **settings: Any,
    ):
        check_same_model(module, replicas)
        super().__init__(module, optimizer_class, group, **settings)
        self.plan.check_same_groups(replicas)
        self.replicas = replicas
        for tensor in [*(unit.shard for unit in self.units), *self.in_no_unit(), *module.buffers()]:
            if tensor.numel():
                replicas.broadcast(tensor.data)  # the first host's
        self.gradients = ReduceOverHosts(self.gradients, self.trained, replicas)


class ReduceOverHosts:
    """Gradients that are reduced inside of a host, and then between hosts, once a step."""

    def __init__(self, inside: Gradients, units: Sequence[FlatUnit], replicas: Group):
        self.inside, self.units, self.replicas = inside, units, replicas

    def mark_ready(self, parameter: nn.Parameter) -> None:
        self.inside.mark_ready(parameter)

    def reduce(self) -> None:
        """dW[s]{partial over hosts} → dW[s], however many backward passes a step has."""
        self.inside.reduce()
        handles = []
        for unit in self.units:
            assert unit.gradient is not None, "it is reduced inside of the host"
            handles.append(self.replicas.all_reduce(unit.gradient, "avg", async_op=True))
        for handle in handles:
            handle.wait()

    def reset(self) -> None:
        self.inside.reset()

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return self.inside.no_sync()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        return self.inside.tensors()


def train_rank(
    group: Group, per_host: int, batch: int, steps: int
) -> tuple[list[float], int, int, list[int]]:
    """One rank: losses; bytes sent in the last step inside its host, and between; its shards."""
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network, train

    inside, between = (RingGroup(part) for part in mesh(group, per_host))
    model = make_network(seed=group.rank).to(group.device)
    trained = HSDP(model, torch.optim.AdamW, inside, between, lr=1e-2)
    *early, last = (shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps))
    losses = train(model, trained.step, early, examples=batch / group.size)
    inside.trace, between.trace = traces = Trace(group.rank), Trace(group.rank)
    losses += train(model, trained.step, [last], examples=batch / group.size)
    return (
        group.all_reduce(torch.tensor(losses, device=group.device), "avg").tolist(),
        traces[0].sent,
        traces[1].sent,
        [unit.layout.shard_size for unit in trained.units],
    )


def main(
    ranks: int = 4, per_host: int = 2, batch: int = 256, steps: int = 30, device: str = "auto"
) -> None:
    """Train on what plays several hosts: the losses of one device, and few bytes between hosts."""
    from distributed.traffic import between_hosts
    from distributed.workbench.data import batches
    from distributed.workbench.training import Alone, make_network, train

    results = launch(train_rank, per_host, batch, steps, ranks=ranks, device=device)
    alone = Alone(make_network(), torch.optim.AdamW, lr=1e-2)
    expected = train(alone.model, alone.step, batches(1797, batch, steps), examples=batch)
    losses, inside, between, shards = results[0]
    print(f"last loss {losses[-1]:.6f}, on one device {expected[-1]:.6f}")
    assert all(abs(a / b - 1) < 1e-3 for a, b in zip(losses, expected, strict=True))
    print(f"each rank sends {inside:,} bytes inside its host, and {between:,} to other hosts")
    assert between == 4 * between_hosts(shards, host=0, hosts=ranks // per_host)


if __name__ == "__main__":
    run_script(main)
