"""HSDP: ZeRO-3 inside of each host, and the same on every host.

    dW[s·N/H]{partial over all ranks} → reduce_scatter(avg), in a host → dW[s]{partial over hosts}
    dW[s]{partial over hosts} → all_reduce(avg), between hosts → dW[s]

Gathering stays where links are fast. Between hosts go only gradients, once a step, and each rank
sends those of its own shard ("hybrid sharding": Zhao et al. 2023, §3.2.2).
"""

from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.replicas import check_same_model
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

    def _reduce_gradients(self) -> None:
        """dW[s]{partial over hosts} → dW[s], once a step, however many backward passes it has."""
        super()._reduce_gradients()
        assert self.replicas
        handles = []
        for unit in self.trained:
            assert unit.gradient is not None, "it is reduced inside of the host"
            handles.append(self.replicas.all_reduce(unit.gradient, "avg", async_op=True))
        for handle in handles:
            handle.wait()
