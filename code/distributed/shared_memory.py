"""Collectives inside one host, over shared memory.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Ranks of one host need no messages: they read and write each other's memory. A `SharedGroup` has the
methods of a `Group`. It reduces tensors from its `empty` in place, and copies all others first.
"""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group, launch
from distributed.runtime.arrays import COMBINE
from distributed.runtime.script import run_script
from distributed.runtime.shared_buffers import SharedMemory, check_can_share, stores_in_order
from distributed.runtime.transport import Transport


class SharedGroup(Group):
    """The ranks of `group`, all on one host, with collectives over shared memory.

    Messages are as in `group`. Raises ValueError if ranks are on several hosts, if tensors are on
    GPUs, and on processors that may reorder stores, such as ARM's. In these cases use `group`
    itself, which sends messages.
    """

    costly_buffers = True
    block = 1 << 15  # elements: they stay in cache while those of all ranks are added

    def __init__(self, group: Group, scratch: int = 1 << 22):
        check_can_share(group)
        super().__init__(group.device, group.board, group.local_size, group.backend, group.queue)
        self.trace = group.trace
        self.memory = SharedMemory(group, scratch)

    def alike(self, part: Group) -> Group:
        return type(self)(part)

    def empty(self, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """x[n] in shared memory. Every rank must call it, with the same n and dtype."""
        return self.memory.empty(n, dtype)

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        """x[...]{partial over ranks} → x[...]: each rank adds up one part, and all copy it.

        16-bit elements are added in float32 and rounded once, all others in their own dtype.
        """

        def run(flat: torch.Tensor) -> None:
            def use(here: slice, theirs: list[torch.Tensor]) -> None:
                parts = [view[0].tensor_split(self.size) for view in theirs]
                mine = [of_rank[self.rank] for of_rank in parts]
                if theirs[self.rank].data_ptr() == flat.data_ptr():  # x is shared
                    self.add_up(mine, op, to=[mine[self.rank], *mine])
                else:
                    whole = flat[here].tensor_split(self.size)
                    self.add_up(mine, op, to=[whole[self.rank], mine[self.rank]])
                    self.memory.barrier.wait()
                    for rank in range(self.size):
                        if rank != self.rank:
                            whole[rank].copy_(parts[rank][rank])

            self.memory.with_all_ranks(flat.view(1, -1), use)

        return self._shared(f"all_reduce {op}", x, run, op, async_op)

    def reduce_scatter(
        self, x: torch.Tensor, out: torch.Tensor, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[N·s]{partial over ranks} → out[s]: rank r adds up the r-th of N equal parts.

        x is overwritten, as in every group. 16-bit elements are added in float32, rounded once.
        """
        self.check_parts(x, out)

        def use(here: slice, theirs: list[torch.Tensor]) -> None:
            self.add_up([view[self.rank] for view in theirs], op, to=[out.view(-1)[here]])

        def run(flat: torch.Tensor) -> None:
            self.memory.with_all_ranks(flat.view(self.size, -1), use)

        return self._shared(f"reduce_scatter {op}", x, run, op, async_op, out)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, async_op: bool = False) -> Any:
        """x[s], different on each rank → out[N·s], equal on every rank, in rank order."""
        self.check_parts(out, x)

        def use(here: slice, theirs: list[torch.Tensor]) -> None:
            for target, view in zip(out.view(self.size, -1), theirs, strict=True):
                target[here].copy_(view[0])

        def run(flat: torch.Tensor) -> None:
            self.memory.with_all_ranks(flat.view(1, -1), use)

        return self._shared("all_gather", x, run, async_op=async_op, out=out)

    def broadcast(self, x: Any, root: int = 0, async_op: bool = False) -> Any:
        """x[...] of rank `root` → x[...] on every rank."""
        self.check_rank("root", root)

        def run(flat: torch.Tensor) -> None:
            def use(here: slice, theirs: list[torch.Tensor]) -> None:
                if self.rank != root:
                    flat[here].copy_(theirs[root][0])

            self.memory.with_all_ranks(flat.view(1, -1), use)

        return self._shared(f"broadcast from {root}", x, run, async_op=async_op)

    def add_up(self, sources: list[torch.Tensor], op: str, to: list[torch.Tensor]) -> None:
        """All ranks' sources[N][n] → to[0][n], copied to the rest of `to`, block by block.

        Each block is added up in the dtype of `wide`, so even a mean of float16 can't overflow.
        """
        combine, total = COMBINE[op], to[0]
        narrow = total.dtype in (torch.float16, torch.bfloat16)
        wide = torch.empty(self.block, dtype=torch.float32) if narrow else None
        first, *rest = sources[self.rank :] + sources[: self.rank]  # ours may be the output itself
        for start in range(0, len(total), self.block):
            here = slice(start, start + self.block)
            sum_here = total[here] if wide is None else wide[: len(total) - start]
            if rest:
                combine(first[here].to(sum_here.dtype), rest[0][here], out=sum_here)
            elif first.data_ptr() != sum_here.data_ptr():
                sum_here.copy_(first[here])
            for source in rest[1:]:
                combine(sum_here, source[here], out=sum_here)
            if op == "avg":
                sum_here /= self.size
            if wide is not None:
                total[here].copy_(sum_here)
            for target in to[1:]:
                if target.data_ptr() != total.data_ptr():
                    target[here].copy_(total[here])

    def _shared(
        self,
        call: str,
        x: Any,
        run: Callable[[torch.Tensor], None],
        op: str = "sum",
        async_op: bool = False,
        out: Any = None,
    ) -> Any:
        """Call run(flat x), and record it. Calls take turns: they share a scratch and a barrier."""

        def traced(_: Transport, tensor: torch.Tensor) -> None:
            with self._traced(call) as trace:
                run(tensor.view(-1))
                if trace:
                    trace.handed_over += tensor.nbytes

        return self.in_turn(call, x, traced, op, async_op, out)


def main(ranks: int = 4, n: int = 1_000_000) -> None:
    """Reduce a tensor in shared memory, and one that isn't."""

    def both(group: Group) -> float:
        shared = SharedGroup(group) if stores_in_order() else group
        for x in (shared.empty(n), torch.empty(n)):
            assert (shared.all_reduce(x.fill_(group.rank)) == sum(range(group.size))).all()
        return x[0].item()

    print("the sum, on every rank:", launch(both, ranks=ranks))


if __name__ == "__main__":
    run_script(main)
