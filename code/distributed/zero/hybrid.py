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

from distributed import Group
from distributed.replicas import check_same_model
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
