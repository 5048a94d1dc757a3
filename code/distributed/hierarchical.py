"""All-reduce over many hosts: shared memory inside each, a ring between them.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Links between hosts are slower than those inside. So the ranks of a host first add up their arrays;
then each rank reduces its part of the array with its counterparts on the other hosts.
"""

from typing import Any

import torch

from distributed import Group, launch
from distributed.all_reduce import Sent, ring, ring_sent
from distributed.runtime.arrays import COMBINE, divide, divisors
from distributed.runtime.script import run_script
from distributed.runtime.shared_buffers import stores_in_order
from distributed.runtime.transport import Transport
from distributed.shared_memory import SharedGroup


class HierarchicalGroup(Group):
    """`group`, with an all-reduce that sends as little as possible between hosts.

    Each host has `per_host` consecutive ranks (default: `group.local_size`). With a smaller number,
    one machine simulates several hosts. Raises ValueError if the ranks don't fill whole hosts.
    """

    def __init__(self, group: Group, per_host: int | None = None):
        per_host = per_host or group.local_size
        if group.size % per_host or group.local_size % per_host:
            raise ValueError(f"per_host={per_host}: {group.size} ranks do not make such hosts")
        super().__init__(group.device, group.board, group.local_size, group.backend, group.queue)
        self.trace = group.trace
        self.inside = within_host(group.split(group.rank // per_host))
        self.between = group.split(group.rank % per_host)
        self._shared = torch.empty(0)

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        """x[...]{partial over ranks} → x[...], equal to the bit on every rank.

        Reduce-scatter inside, all-reduce between, all-gather inside (Cho et al. 2019). With N ranks
        on H hosts, each rank sends 2(nH/N)(H − 1)/H of n elements between hosts, in 2(H − 1) steps.
        Inside a host, 16-bit elements are added in float32 and rounded once; between hosts, each of
        the H − 1 sums is rounded to x's dtype. Raises ValueError for an op that x's dtype doesn't
        have.
        """

        def work(_: Transport, tensor: torch.Tensor) -> None:
            self.between.trace = self.trace
            within = "sum" if op == "avg" else op
            part = -(-tensor.numel() // self.inside.size)
            whole = self._buffer_inside(part * self.inside.size, tensor.dtype)
            mine = whole[part * self.inside.rank :][:part]
            before, after = divisors(op, self.size, tensor.dtype)
            whole[: tensor.numel()].copy_(tensor.view(-1))
            divide(whole[: tensor.numel()], before)
            self.inside.reduce_scatter(whole, mine, within)
            ring(self.between, mine, COMBINE[op])
            self.inside.all_gather(mine, whole)
            tensor.view(-1).copy_(whole[: tensor.numel()])
            divide(tensor, after)

        return self.in_turn(f"all_reduce {op} by hosts", x, work, op, async_op)

    def _buffer_inside(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """x[n] in the host's shared memory, the same each time if it is large enough."""
        if self._shared.nbytes < n * dtype.itemsize:
            self._shared = self.inside.empty(n * dtype.itemsize, torch.uint8)
        return self._shared[: n * dtype.itemsize].view(dtype)


def within_host(group: Group) -> Group:
    """The group for sums inside a host: over shared memory if possible, else `group` itself.

    GPUs use NCCL instead, and some processors can't use shared memory either: see
    `shared_buffers.STORES_IN_ORDER`.
    """
    can_share = group.device.type == "cpu" and stores_in_order()
    return SharedGroup(group) if can_share else group


def hierarchical_sent(n: int, rank: int, ranks: int, per_host: int) -> Sent:
    """What a rank sends to other hosts: a ring all-reduce of its part of the array."""
    hosts = ranks // per_host
    return ring_sent(-(-n // per_host), rank // per_host, hosts)


def main(ranks: int = 4, per_host: int = 2, n: int = 1000) -> None:
    """Simulate several hosts on one machine, and count what they send to each other."""
    from distributed.runtime.trace import Trace

    def count(group: Group) -> Sent:
        hierarchy = HierarchicalGroup(group, per_host)
        hierarchy.trace = trace = Trace(group.rank)
        x = torch.full((n,), float(group.rank))
        hierarchy.all_reduce(x)
        assert (x == sum(range(group.size))).all()
        return Sent(trace.sent // 4, trace.messages)

    for rank, counted in enumerate(counts := launch(count, ranks=ranks)):
        print(f"rank {rank} sent {counted.elements} of {n} elements to other hosts")
        assert counted == hierarchical_sent(n, rank, len(counts), per_host)


if __name__ == "__main__":
    run_script(main)
