"""Collectives inside one host: ranks that read each other's memory.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

Ranks of one host need no messages: they read and write each other's memory. A `SharedGroup` has the
methods of a `Group`. What its `empty` makes is reduced where it stands, all else is copied there.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from distributed import Group, launch
from distributed.parts import cut_up, others
from distributed.runtime.group import COMBINE, timeout_of
from distributed.runtime.script import run_script
from distributed.runtime.transport import as_tensor

# Processors that show a rank's stores to the others in the order in which it made them. All else
# here rests on that: numbers first, then how far it is. Elsewhere a fence would have to stand
# between, and Python has none.
STORES_IN_ORDER = ("x86_64", "AMD64", "i686", "i386")
OFFSETS = 1 << 40  # more than a buffer has bytes


def stores_in_order() -> bool:
    """Whether this processor is one on which ranks can share memory; see STORES_IN_ORDER."""
    return platform.machine() in STORES_IN_ORDER


class Shared:
    """As many bytes on every rank of a host, which all of them can read and write."""

    def __init__(self, group: Group, size: int):
        if not hasattr(os, "memfd_create"):
            raise ValueError("shared memory between ranks needs Linux (memfd_create)")
        # It has no name in any folder, so nothing is ever left behind.
        file = os.memfd_create(f"rank {group.rank}")
        os.truncate(file, size)
        whose = torch.zeros(group.size, 2, dtype=torch.int64)
        whose[group.rank] = torch.tensor([os.getpid(), file])
        Group.all_reduce(group, whose)
        paths = [f"/proc/{process}/fd/{opened}" for process, opened in whose.tolist()]
        self.buffers = [
            torch.from_file(path, shared=True, size=size, dtype=torch.uint8) for path in paths
        ]
        self.mine = self.buffers[group.rank]
        group.barrier()  # all have opened all
        os.close(file)

    def view(self, rank: int, offset: int, x: torch.Tensor) -> torch.Tensor:
        """What `rank` has there, in the dtype and shape of x."""
        return view_in(self.buffers[rank], offset, x)


def view_in(buffer: torch.Tensor, offset: int, x: torch.Tensor) -> torch.Tensor:
    """What is in buffer[bytes] from `offset` on, in the dtype and shape of x."""
    return buffer[offset : offset + x.nbytes].view(x.dtype).view(x.shape)


class Resident:
    """Shared memory that `SharedGroup.empty` gave away: used as long as a tensor lives in it."""

    def __init__(self, shared: Shared, rank: int):
        self.buffers: list[torch.Tensor | None] = [*shared.buffers]
        self.buffers[rank] = None  # ours would keep it alive
        self.start, self.size = shared.mine.data_ptr(), shared.mine.nbytes
        self.storage = StorageWeakRef(shared.mine.untyped_storage())

    def view(self, rank: int, offset: int, x: torch.Tensor) -> torch.Tensor:
        """What `rank` has there, in the dtype and shape of x, which is what this rank has there."""
        buffer = self.buffers[rank]
        return x if buffer is None else view_in(buffer, offset, x)

    def offset(self, x: torch.Tensor) -> int | None:
        """At which byte of this rank's buffer x begins; None if x is not in there."""
        start = x.data_ptr() - self.start
        inside = 0 <= start <= start + x.nbytes <= self.size
        # Where nothing lives any more, the same addresses may belong to any other tensor.
        return start if inside and self.is_used() else None

    def is_used(self) -> bool:
        return not self.storage.expired()


class SharedBarrier:
    """Where ranks of a host wait for each other, and tell each other a number.

    TimeoutError names a rank that has not come in the time in which the group's collectives end.
    """

    def __init__(self, group: Group):
        shared = Shared(group, 3 * 8)
        self.of_ranks = [buffer.view(torch.int64).numpy() for buffer in shared.buffers]
        self.mine = self.of_ranks[group.rank]
        self.number, self.told = 0, 0
        self.timeout = timeout_of(group.backend, group.device).total_seconds()

    def wait(self) -> None:
        """Nobody passes before all have come: each writes how often it came, reads the others'."""
        self.number += 1
        self.mine[0] = self.number
        for rank, counters in enumerate(self.of_ranks):
            tries, give_up = 0, math.inf
            while counters[0] < self.number:
                tries += 1
                if tries == 200:
                    give_up = time.monotonic() + self.timeout
                elif time.monotonic() > give_up:
                    raise TimeoutError(f"rank {rank} has not come within {self.timeout:g} s")
                # Whoever we wait for may need this core: let it go, and for longer after a while.
                time.sleep(0 if tries < 200 else 20e-6)

    def tell(self, number: int) -> list[int]:
        """Every rank's number, in rank order. Two places, in turns: one may still be read."""
        self.told += 1
        place = 1 + self.told % 2
        self.mine[place] = number
        self.wait()
        return [int(counters[place]) for counters in self.of_ranks]


class SharedGroup(Group):
    """The ranks of `group`, all on one host, with collectives over shared memory.

    Messages are as in `group`. Raises ValueError where ranks are on several hosts, where tensors
    are on GPUs, and on processors that may change the order of stores, such as ARM's: there use
    `group` itself, which sends messages.
    """

    keeps = True
    block = 1 << 15  # numbers: they stay in a processor's cache while all ranks' are added

    def __init__(self, group: Group, scratch: int = 1 << 22):
        if group.local_size < group.size or group.device.type != "cpu":
            raise ValueError("group: shared memory needs all ranks on one host, and CPU tensors")
        if not stores_in_order():
            raise ValueError(
                f"group: {platform.machine()} may change the order of stores to shared memory, "
                "which needs x86: use the group itself, or a RingGroup"
            )
        super().__init__(group.device, group.board, group.local_size, group.backend, group.queue)
        self.trace = group.trace
        self.sync = SharedBarrier(group)
        # Two, used in turns: a rank can fill one while others still read the other.
        self.scratch = [Shared(group, scratch), Shared(group, scratch)]
        self.made = 0
        self.resident: dict[int, Resident] = {}  # by their numbers, alike on all ranks

    def empty(self, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """x[n] in shared memory. Every rank must call it, with the same n and dtype.

        Memory that no rank uses any more is given back here, where all of them meet.
        """
        if self.resident:
            used = torch.tensor([each.is_used() for each in self.resident.values()]).int()
            marks = Group.all_reduce(self, used, "max").tolist()
            for number, mark in zip([*self.resident], marks, strict=True):
                if not mark:
                    del self.resident[number]
        shared = Shared(self, max(1, n * dtype.itemsize))
        x = shared.mine[: n * dtype.itemsize].view(dtype)
        self.made += 1
        self.resident[self.made] = Resident(shared, self.rank)
        return x

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        """x[...]{partial over ranks} → x[...]: each rank adds up one part, and all copy it.

        Numbers of 16 bits are added in float32 and rounded once, all others in their own dtype.
        """

        def work(flat: torch.Tensor) -> None:
            for here, theirs in self.of_all_ranks(flat.view(1, -1)):
                parts = [cut_up(view[0], self.size) for view in theirs]
                mine = [of_rank[self.rank] for of_rank in parts]
                if theirs[self.rank].data_ptr() == flat.data_ptr():  # x is shared
                    self.add_up(mine, op, to=[mine[self.rank], *mine])
                else:
                    whole = cut_up(flat[here], self.size)
                    self.add_up(mine, op, to=[whole[self.rank], mine[self.rank]])
                    self.sync.wait()
                    for rank in others(self):
                        whole[rank].copy_(parts[rank][rank])

        return self._shared(f"all_reduce {op}", x, work, op, async_op)

    def reduce_scatter(
        self, x: torch.Tensor, out: torch.Tensor, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[N·s]{partial over ranks} → out[s]: rank r adds up the r-th of N equal parts.

        x is spent, as in every group. Numbers of 16 bits are added in float32 and rounded once.
        """
        self.check_parts(x, out)

        def work(flat: torch.Tensor) -> None:
            for here, theirs in self.of_all_ranks(flat.view(self.size, -1)):
                self.add_up([view[self.rank] for view in theirs], op, to=[out.view(-1)[here]])

        return self._shared(f"reduce_scatter {op}", x, work, op, async_op, out)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, async_op: bool = False) -> Any:
        """x[s], another one on each rank → out[N·s], equal on every rank, in rank order."""
        self.check_parts(out, x)

        def work(flat: torch.Tensor) -> None:
            for here, theirs in self.of_all_ranks(flat.view(1, -1)):
                for target, view in zip(out.view(self.size, -1), theirs, strict=True):
                    target[here].copy_(view[0])

        return self._shared("all_gather", x, work, async_op=async_op, out=out)

    def broadcast(self, x: Any, source: int = 0, async_op: bool = False) -> Any:
        """x[...] of rank `source` → x[...] on every rank."""
        self.check_rank("source", source)

        def work(flat: torch.Tensor) -> None:
            for here, theirs in self.of_all_ranks(flat.view(1, -1)):
                if self.rank != source:
                    flat[here].copy_(theirs[source][0])

        return self._shared(f"broadcast from {source}", x, work, async_op=async_op)

    def of_all_ranks(self, x: torch.Tensor) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """What every rank has of x[k, s]: where along s, and N of [k, there].

        What is shared, on all ranks, is there as a whole, and left alone until all have read it.
        Anything else is copied into shared memory, a chunk at a time.
        """
        places = self.sync.tell(self.place(x))
        if min(places) >= 0:
            found = enumerate(divmod(place, OFFSETS) for place in places)
            yield slice(None), [self.resident[i].view(rank, at, x) for rank, (i, at) in found]
            self.sync.wait()
            return
        k, s = x.shape
        width = self.scratch[0].mine.nbytes // (k * x.itemsize)
        for start in range(0, s, width):
            chunk = x[:, start : start + width]
            scratch = self.scratch[0]
            scratch.view(self.rank, 0, chunk).copy_(chunk)
            self.scratch.reverse()
            self.sync.wait()
            here = slice(start, start + width)
            yield here, [scratch.view(rank, 0, chunk) for rank in range(self.size)]

    def place(self, x: torch.Tensor) -> int:
        """Where x is in shared memory, as one number; -1 if it is not there."""
        for i, resident in self.resident.items():
            if (offset := resident.offset(x)) is not None:
                return i * OFFSETS + offset
        return -1

    def add_up(self, sources: list[torch.Tensor], op: str, to: list[torch.Tensor]) -> None:
        """All ranks' sources[N][n] → to[0][n], and copied to the others; block by block.

        Each block is added up in the dtype of `wide`. Then even a mean of float16 cannot overflow.
        """
        combine, total = COMBINE[op], to[0]
        narrow = total.dtype in (torch.float16, torch.bfloat16)
        wide = torch.empty(self.block, dtype=torch.float32) if narrow else None
        first, *rest = sources[self.rank :] + sources[: self.rank]  # ours can be where it adds up
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
        work: Callable[[torch.Tensor], None],
        op: str = "sum",
        async_op: bool = False,
        out: Any = None,
    ) -> Any:
        """Do `work` on flat x, and record it. In its turn: there is one scratch, one barrier."""

        def traced(_: Group) -> None:
            with as_tensor(x, writes=out is None) as tensor, self._traced(call) as trace:
                work(tensor.view(-1))
                if trace:
                    trace.handed_over += tensor.nbytes

        return self.in_turn(call, x, traced, op, async_op, out)


def main(ranks: int = 4, n: int = 1_000_000) -> None:
    """Reduce a tensor that lives in shared memory, and one that does not."""

    def both(group: Group) -> float:
        shared = SharedGroup(group)
        for x in (shared.empty(n), torch.empty(n)):
            assert (shared.all_reduce(x.fill_(group.rank)) == sum(range(group.size))).all()
        return x[0].item()

    print("the sum, on every rank:", launch(both, ranks=ranks))


if __name__ == "__main__":
    run_script(main)
