"""Shared memory that all ranks of a host can read and write, and a barrier in it.

    buffers[rank][bytes], the same on every rank: all ranks see what one writes

Ranks read and write the buffers in place, so the barrier is their only communication: first write,
then wait until all have written, then read.
"""

import math
import os
import platform
import tempfile
import time
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from distributed.runtime.group import Group, timeout_of

# Processors that show a rank's stores to the others in the order in which it made them. This module
# depends on that: a rank writes the elements first, then the count. Other processors would need a
# fence between the two, and Python has none.
STORES_IN_ORDER = ("x86_64", "AMD64", "i686", "i386")


def stores_in_order() -> bool:
    """Whether ranks can share memory on this processor; see STORES_IN_ORDER."""
    return platform.machine() in STORES_IN_ORDER


def check_can_share(group: Group) -> None:
    """Raise ValueError unless the ranks of a group can share memory."""
    if group.local_size < group.size or group.device.type != "cpu":
        raise ValueError("group: shared memory needs all ranks on one host, and CPU tensors")
    if not stores_in_order():
        raise ValueError(
            f"group: {platform.machine()} may change the order of stores to shared memory, "
            "which needs x86: use the group itself, or a RingGroup"
        )


class Shared:
    """A buffer of `size` bytes per rank of a host, which all of them can read and write."""

    def __init__(self, group: Group, size: int):
        if hasattr(os, "memfd_create"):  # it has no name in any folder, so it can't be left behind
            file, path = os.memfd_create(f"rank {group.rank}"), "/proc/{}/fd/{}"
        else:  # macOS: a file, deleted when all have opened it
            file, drawn = tempfile.mkstemp()
            path = f"{tempfile.gettempdir()}/shared-{{}}-{{}}"
            os.replace(drawn, path.format(os.getpid(), file))
        os.truncate(file, size)
        files = torch.zeros(group.size, 2, dtype=torch.int64)
        files[group.rank] = torch.tensor([os.getpid(), file])
        Group.all_reduce(group, files)
        paths = [path.format(process, opened) for process, opened in files.tolist()]
        self.buffers = [
            torch.from_file(each, shared=True, size=size, dtype=torch.uint8) for each in paths
        ]
        self.mine = self.buffers[group.rank]
        group.barrier()  # all have opened all
        if not hasattr(os, "memfd_create"):
            os.unlink(paths[group.rank])
        os.close(file)

    def view(self, rank: int, offset: int, x: torch.Tensor) -> torch.Tensor:
        """View of `rank`'s buffer at `offset` (bytes), with the dtype and shape of x."""
        return view_in(self.buffers[rank], offset, x)


def view_in(buffer: torch.Tensor, offset: int, x: torch.Tensor) -> torch.Tensor:
    """View of buffer[bytes] from `offset` on, with the dtype and shape of x."""
    return buffer[offset : offset + x.nbytes].view(x.dtype).view(x.shape)


class Resident:
    """Shared memory of a tensor from `SharedGroup.empty`, in use as long as a tensor is in it."""

    def __init__(self, shared: Shared, rank: int):
        self.buffers: list[torch.Tensor | None] = [*shared.buffers]
        self.buffers[rank] = None  # our own reference would keep it alive
        self.start, self.size = shared.mine.data_ptr(), shared.mine.nbytes
        self.storage = StorageWeakRef(shared.mine.untyped_storage())

    def view(self, rank: int, offset: int, x: torch.Tensor) -> torch.Tensor:
        """View of `rank`'s buffer at `offset`, like x; for this rank it is x itself."""
        buffer = self.buffers[rank]
        return x if buffer is None else view_in(buffer, offset, x)

    def offset(self, x: torch.Tensor) -> int | None:
        """The byte of this rank's buffer at which x begins; None if x isn't in it."""
        start = x.data_ptr() - self.start
        inside = 0 <= start <= start + x.nbytes <= self.size
        # After the memory is freed, its addresses may belong to a different tensor.
        return start if inside and self.is_used() else None

    def is_used(self) -> bool:
        return not self.storage.expired()


class SharedBarrier:
    """Barrier for the ranks of a host, which can also exchange two integers.

    cells[0]                how often this rank has arrived
    cells[1:3], cells[3:5]  its integers, alternating: others may still read the previous ones

    TimeoutError names a rank that doesn't arrive within the timeout of the group's collectives.
    """

    def __init__(self, group: Group):
        shared = Shared(group, 5 * 8)
        self.of_ranks = [buffer.view(torch.int64).numpy() for buffer in shared.buffers]
        self.mine = self.of_ranks[group.rank]
        self.count, self.told = 0, 0
        self.timeout = timeout_of(group.backend, group.device).total_seconds()

    def wait(self) -> None:
        """Wait until all ranks are here: each writes its count, then reads the others'."""
        self.count += 1
        self.mine[0] = self.count
        for rank, cells in enumerate(self.of_ranks):
            tries, give_up = 0, math.inf
            while cells[0] < self.count:
                tries += 1
                if tries == 200:
                    give_up = time.monotonic() + self.timeout
                elif time.monotonic() > give_up:
                    raise TimeoutError(f"rank {rank} has not come within {self.timeout:g} s")
                # The other rank may need this core: yield it, after a while for longer.
                time.sleep(0 if tries < 200 else 20e-6)

    def tell(self, first: int, second: int) -> list[tuple[int, int]]:
        """All-gather of two integers: every rank's pair, in rank order. A barrier, too."""
        self.told += 1
        at = 1 + 2 * (self.told % 2)
        self.mine[at], self.mine[at + 1] = first, second
        self.wait()
        return [(int(cells[at]), int(cells[at + 1])) for cells in self.of_ranks]


# use(here, parts): parts[r] is rank r's x[:, here], of x[k, s], which every rank can read.
Use = Callable[[slice, list[torch.Tensor]], None]


class SharedMemory:
    """Shared memory of a group: tensors in it, and two scratch buffers for all other tensors."""

    def __init__(self, group: Group, scratch: int):
        self.group, self.barrier = group, SharedBarrier(group)
        self.scratch = [Shared(group, scratch), Shared(group, scratch)]
        self.next_id = 0
        self.resident: dict[int, Resident] = {}  # by id, which is equal on all ranks

    def empty(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """x[n] in shared memory. All ranks must call it, with the same n and dtype.

        It also frees memory that no rank uses anymore, because all ranks meet here.
        """
        if self.resident:
            used = torch.tensor([each.is_used() for each in self.resident.values()]).int()
            marks = Group.all_reduce(self.group, used, "max").tolist()
            for id, mark in zip([*self.resident], marks, strict=True):
                if not mark:
                    del self.resident[id]
        shared = Shared(self.group, max(1, n * dtype.itemsize))
        x = shared.mine[: n * dtype.itemsize].view(dtype)
        self.resident[self.next_id] = Resident(shared, self.group.rank)
        self.next_id += 1
        return x

    def with_all_ranks(self, x: torch.Tensor, use: Use) -> None:
        """Call use(here, parts) on every rank's x[k, s]: parts[N], each x[:, here] of one rank.

        If x is in shared memory on all ranks, they work on it in place. Otherwise it is copied into
        shared memory, a chunk at a time.
        """
        found = self.barrier.tell(*self.find(x))  # all have written their x
        if min(id for id, _ in found) < 0:
            self._with_copies(x, use)
            return
        parts = [self.resident[id].view(rank, at, x) for rank, (id, at) in enumerate(found)]
        use(slice(None), parts)
        self.barrier.wait()  # all have read: x may be written again

    def _with_copies(self, x: torch.Tensor, use: Use) -> None:
        """Copy x through two scratch buffers: a rank fills one while others still read the other.

        So one barrier per chunk is enough. No rank passes the next one before all have read this.
        """
        k, s = x.shape
        width = self.scratch[0].mine.nbytes // (k * x.itemsize)
        for start in range(0, s, width):
            here = slice(start, start + width)
            chunk, scratch = x[:, here], self.scratch[0]
            self.scratch.reverse()
            scratch.view(self.group.rank, 0, chunk).copy_(chunk)
            self.barrier.wait()  # all have copied theirs
            use(here, [scratch.view(rank, 0, chunk) for rank in range(self.group.size)])

    def find(self, x: torch.Tensor) -> tuple[int, int]:
        """The id of the shared memory that has x, and x's first byte in it; (-1, 0) if none."""
        for id, resident in self.resident.items():
            if (offset := resident.offset(x)) is not None:
                return id, offset
        return -1, 0
