"""A board on which ranks write what they call, so that a mismatch has a name.

A collective that not every rank calls, or not with the same array, blocks for ever or mixes up
numbers. Comparing notes first turns that into an error which says who called what.
"""

import contextlib
import copy
import os
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
import torch.distributed as dist


class Board:
    """Where the ranks of a group write which collective they call, for the others to compare.

    Nobody waits here. Whoever comes last to a meeting sees what all others came for, and can say so
    before blocking. Ranks of one host share a file in memory, with a row for each: notes[row,
    column] = (key, call). The key is made of the group and of how many calls it has made.

    Where there are several hosts, the first rank of each can also ask `store`. That is a round trip
    through the network for each call, so it does if the environment says COMPARE_HOSTS=1.
    """

    KEPT = 256  # who does not wait for a collective runs ahead: notes that old are not compared
    NOTE = np.dtype([("key", np.int64), ("call", "S120")])

    def __init__(
        self, file: Path, rank: int, here: int, first: int = 0, store: dist.Store | None = None
    ):
        """`here` ranks, from the `first` on, share the file; `store`: those of other hosts too."""
        self.notes = np.memmap(file, self.NOTE, "r+", shape=(here, self.KEPT))
        self.rank, self.first, self.here = rank, first, here
        self.compares_hosts = store is not None
        self.store = AnsweringStore(store) if store and rank == first else None
        self.group, self.number = 0, 0
        self.found: dict[str, str] = {}  # what the store had last, by its places

    @classmethod
    def create(cls, file: Path, here: int) -> None:
        """An empty board for `here` ranks of one host."""
        np.memmap(file, cls.NOTE, "w+", shape=(here, cls.KEPT)).flush()

    @classmethod
    def of_hosts(cls, local_rank: int, here: int) -> "Board":
        """For all ranks of the process group: `here` on this host. Every rank must call it."""
        rank, size, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
        assert world is not None, "the ranks have met"
        met = world.get_group_store()
        store = dist.PrefixStore(f"board {met.add(f'boards of rank {rank}', 1)}", met)
        first = rank - local_rank
        if local_rank == 0:
            opened, name = tempfile.mkstemp(prefix="board-")
            os.close(opened)
            cls.create(Path(name), here)
            store.set(f"file of {first}", name)
        file = Path(store.get(f"file of {first}").decode())
        asks = here < size and os.environ.get("COMPARE_HOSTS") == "1"
        board = cls(file, rank, here, first, store if asks else None)
        store.set(f"opened by {rank}", "")
        if local_rank == 0:
            store.wait([f"opened by {each}" for each in range(first, first + here)])
            with contextlib.suppress(PermissionError):  # Windows keeps what is open
                file.unlink()
        return board

    def part(self, ranks: Sequence[int], backend: dist.ProcessGroup) -> "Board":
        """The board of some ranks that are a group of their own: on the same memory."""
        part = copy.copy(self)
        near = [rank for rank in ranks if self.first <= rank < self.first + len(self.notes)]
        part.here = len(near)
        asks = self.compares_hosts and self.rank == near[0] and len(near) < len(ranks)
        part.store = AnsweringStore(backend.get_group_store()) if asks else None
        part.group, part.number = zlib.crc32(backend.group_name.encode()), 0
        part.found = {}
        return part

    def announce(self, call: str) -> None:
        """Note this rank's next collective; ValueError if another rank's is a different one."""
        call = call.encode()[:120].decode(errors="ignore")  # as much as there is room for
        self.number += 1
        key, column = self.group << 31 | self.number, (self.group + self.number) % self.KEPT
        row = self.rank - self.first
        # The key comes last: whoever reads it finds the call that belongs to it.
        self.notes["key"][row, column] = 0
        self.notes["call"][row, column] = call.encode()
        self.notes["key"][row, column] = key
        for other in np.flatnonzero(self.notes["key"][:, column] == key):
            theirs = bytes(self.notes["call"][other, column])
            if self.notes["key"][other, column] == key:  # not replaced while we read
                self._compare(call, self.first + int(other), theirs.decode())
        if self.store:
            self._ask(self.store, call)

    def _ask(self, store: "AnsweringStore", call: str) -> None:
        """Leave a note for the other hosts, or find that of the host which came first."""
        key, ours = str(self.number % self.KEPT), f"{self.number} {self.rank} {call}"
        number, found = 0, self.found.get(key, "")
        while number < self.number:  # it takes ours if it still has what we last found there
            answer = store.compare_set(key, found, ours)
            if answer is None:
                self.store = None  # nobody to ask: a collective that cannot be done says so itself
                return
            self.found[key] = found = answer
            number = int(found.split(" ", 1)[0])
        if number == self.number:
            _, rank, theirs = found.split(" ", 2)
            self._compare(call, int(rank), theirs)

    def _compare(self, call: str, rank: int, theirs: str) -> None:
        if theirs != call:
            raise ValueError(
                f"the ranks call different collectives: rank {self.rank} calls {call}, "
                f"rank {rank} calls {theirs}"
            )


class AnsweringStore:
    """A store asked by a thread of its own: on a host that is cut off it would never answer."""

    PATIENCE = 5.0  # s

    def __init__(self, store: dist.Store):
        self.questions: SimpleQueue[tuple[str, str, str]] = SimpleQueue()
        self.answers: SimpleQueue[str] = SimpleQueue()

        def answer() -> None:
            with contextlib.suppress(RuntimeError):  # its host has ended
                while True:
                    self.answers.put(store.compare_set(*self.questions.get()).decode())

        threading.Thread(target=answer, daemon=True, name="notes of other hosts").start()

    def compare_set(self, key: str, last: str, new: str) -> str | None:
        """What is there now: `new`, if `last` was there. None if no answer comes."""
        self.questions.put((key, last, new))
        with contextlib.suppress(Empty):
            return self.answers.get(timeout=self.PATIENCE)
        return None
