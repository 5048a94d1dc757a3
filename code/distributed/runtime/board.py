"""Mismatch detection: a board on which ranks write which collective they call.

If not every rank calls a collective with the same shape and dtype, it blocks forever or mixes up
numbers. Comparing notes first turns that into an error that says which rank called what.
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
    """Notes that record which collective each rank of a group calls, for others to compare.

    No rank waits here. The last rank to arrive sees what all the others called, and can report a
    mismatch before it blocks. The ranks of one host share a mapped file with one row per rank:
    notes[row, column] = (key, call). The key combines the group and its number of calls so far.

    With several hosts, the first rank of each host can also ask `store`. That costs a network round
    trip per call, so it happens only if the environment has COMPARE_HOSTS=1.
    """

    KEPT = 256  # calls; a rank that doesn't wait runs ahead, and older notes aren't compared
    NOTE = np.dtype([("key", np.int64), ("call", "S120")])

    def __init__(
        self, file: Path, rank: int, here: int, first: int = 0, store: dist.Store | None = None
    ):
        """`here` ranks, starting at `first`, share the file; `store` reaches the other hosts."""
        self.notes = np.memmap(file, self.NOTE, "r+", shape=(here, self.KEPT))
        self.rank, self.first, self.here = rank, first, here
        self.compares_hosts = store is not None
        self.store = AnsweringStore(store) if store and rank == first else None
        self.group, self.number = 0, 0
        self.found: dict[str, str] = {}  # the last value seen in the store, by key

    @classmethod
    def create(cls, file: Path, here: int) -> None:
        """An empty board for `here` ranks of one host."""
        np.memmap(file, cls.NOTE, "w+", shape=(here, cls.KEPT)).flush()

    @classmethod
    def of_hosts(cls, local_rank: int, here: int) -> "Board":
        """A board for all ranks of the process group, `here` of them on this host. Collective."""
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
            with contextlib.suppress(PermissionError):  # Windows can't delete an open file
                file.unlink()
        return board

    def part(self, ranks: Sequence[int], backend: dist.ProcessGroup) -> "Board":
        """The board of a subgroup, `ranks`, on the same memory."""
        part = copy.copy(self)
        near = [rank for rank in ranks if self.first <= rank < self.first + len(self.notes)]
        part.here = len(near)
        asks = self.compares_hosts and self.rank == near[0] and len(near) < len(ranks)
        part.store = AnsweringStore(backend.get_group_store()) if asks else None
        part.group, part.number = zlib.crc32(backend.group_name.encode()), 0
        part.found = {}
        return part

    def announce(self, call: str) -> None:
        """Note this rank's next collective; ValueError if any rank has noted a different one."""
        call = call.encode()[:120].decode(errors="ignore")  # as much as fits
        self.number += 1
        key, column = self.group << 31 | self.number, (self.group + self.number) % self.KEPT
        row = self.rank - self.first
        # The key is written last, so a rank that reads it finds the call that belongs to it.
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
        """Leave a note for the other hosts, or find the note of the host that came first."""
        key, ours = str(self.number % self.KEPT), f"{self.number} {self.rank} {call}"
        number, found = 0, self.found.get(key, "")
        while number < self.number:  # the store takes ours if its value is still `found`
            answer = store.compare_set(key, found, ours)
            if answer is None:
                self.store = None  # no answer: a collective that can't be done raises its own error
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
    """A store that a separate thread asks, because on a host that is cut off it never answers."""

    PATIENCE = 5.0  # s

    def __init__(self, store: dist.Store):
        self.questions: SimpleQueue[tuple[str, str, str]] = SimpleQueue()
        self.answers: SimpleQueue[str] = SimpleQueue()

        def answer() -> None:
            with contextlib.suppress(RuntimeError):  # the host of the store has exited
                while True:
                    self.answers.put(store.compare_set(*self.questions.get()).decode())

        threading.Thread(target=answer, daemon=True, name="notes of other hosts").start()

    def compare_set(self, key: str, last: str, new: str) -> str | None:
        """The value now: `new` if it was `last` before. None if no answer comes in time."""
        self.questions.put((key, last, new))
        with contextlib.suppress(Empty):
            return self.answers.get(timeout=self.PATIENCE)
        return None
