"""A group whose collectives are made of this book's own messages, so that every byte is counted.

The backend's collectives move their bytes where Python can't count them. If a program uses a
`RingGroup` instead, its trace shows what each rank really sent.
"""

from typing import Any

import torch

from distributed import Group, launch
from distributed.all_reduce import cut_up, ring, ring_all_gather, ring_reduce_scatter, ring_sent
from distributed.runtime.arrays import COMBINE, divide, divisors
from distributed.runtime.script import run_script
from distributed.runtime.transport import Transport
from distributed.trees import tree_broadcast


class RingGroup(Group):
    """`group`, with collectives around a ring (broadcast: down a binomial tree)."""

    algorithm = staticmethod(ring)  # of `all_reduce`: each rank sends 2n(N − 1)/N

    def __init__(self, group: Group):
        super().__init__(group.device, group.board, group.local_size, group.backend, group.queue)
        self.trace = group.trace

    def alike(self, part: Group) -> Group:
        return type(self)(part)

    def reduce_scatter(
        self, x: torch.Tensor, out: torch.Tensor, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[N·s]{partial over ranks} → out[s]; each rank sends (N − 1)s. x is spent.

        Sums are made in x's dtype, and each of the N − 1 is rounded to it.
        """
        self.check_parts(x, out)

        def work(wire: Transport, tensor: torch.Tensor) -> None:
            before, after = divisors(op, self.size, tensor.dtype)
            divide(tensor, before)
            parts = cut_up(tensor.view(-1), self.size)
            ring_reduce_scatter(wire, parts, COMBINE[op])
            out.view(-1).copy_(parts[self.rank])
            divide(out, after)

        return self.in_turn(f"reduce_scatter {op}", x, work, op, async_op, out)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, async_op: bool = False) -> Any:
        """x[s] of each rank → out[N·s]; each rank sends (N − 1)s."""
        self.check_parts(out, x)

        def work(wire: Transport, tensor: torch.Tensor) -> None:
            parts = cut_up(out.view(-1), self.size)
            parts[self.rank].copy_(tensor.view(-1))
            ring_all_gather(wire, parts)

        return self.in_turn("all_gather", x, work, async_op=async_op, out=out)

    def broadcast(self, x: Any, root: int = 0, async_op: bool = False) -> Any:
        """x[...] of rank `root` → x[...] on every rank; a rank sends n to each child."""
        self.check_rank("root", root)

        def work(wire: Transport, tensor: torch.Tensor) -> None:
            tree_broadcast(wire, tensor.view(-1), root)

        return self.in_turn(f"broadcast from {root}", x, work, async_op=async_op)


def main(ranks: int = 4, n: int = 1000) -> None:
    """An all-reduce is a reduce-scatter and an all-gather, as the counter shows."""
    from distributed.collectives import ring_half_sent
    from distributed.runtime.trace import Trace

    n -= n % ranks

    def count(group: Group) -> list[tuple[int, int]]:
        rings, x = RingGroup(group), torch.ones(n)
        part, counted = torch.empty(n // group.size), []
        for call in (
            lambda: rings.reduce_scatter(x, part),
            lambda: rings.all_gather(part, x),
            lambda: rings.all_reduce(x),
        ):
            rings.trace = trace = Trace(group.rank)
            call()
            counted.append((trace.sent // 4, trace.messages))
        return counted

    for rank, (scattered, gathered, reduced) in enumerate(launch(count, ranks=ranks)):
        print(f"rank {rank}: {scattered[0]} + {gathered[0]} = {reduced[0]} elements")
        assert reduced == ring_sent(n, rank, ranks)
        assert scattered == gathered == ring_half_sent(n, rank, ranks)


if __name__ == "__main__":
    run_script(main)
