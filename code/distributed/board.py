"""A board on which ranks of one machine write what they call, so that a mismatch has a name.

A collective that not every rank calls blocks for ever. Comparing notes first turns that into an
error which says who called what.
"""

from pathlib import Path

import numpy as np


class Board:
    """Where each rank of one machine writes which collective it calls, for the others to compare.

    Nobody waits here. Whoever comes last to a meeting sees what all others came for, and can say so
    before blocking. A file in shared memory: notes[rank, number % KEPT] = (number, call).
    """

    KEPT = 256  # who does not wait for a collective runs ahead: notes that old are not compared
    NOTE = np.dtype([("number", np.int64), ("call", "S120")])

    def __init__(self, file: Path, rank: int, size: int):
        self.notes = np.memmap(file, self.NOTE, "r+", shape=(size, self.KEPT))
        self.rank, self.number = rank, 0

    @classmethod
    def create(cls, file: Path, size: int) -> None:
        """An empty board for `size` ranks."""
        np.memmap(file, cls.NOTE, "w+", shape=(size, cls.KEPT)).flush()

    def announce(self, call: str) -> None:
        """Note this rank's next collective; ValueError if another rank's is a different one."""
        self.number += 1
        column = self.number % self.KEPT
        mine = call.encode()[:120]
        # The number comes last: whoever reads it finds the call that belongs to it.
        self.notes["number"][self.rank, column] = 0
        self.notes["call"][self.rank, column] = mine
        self.notes["number"][self.rank, column] = self.number
        for other in np.flatnonzero(self.notes["number"][:, column] == self.number):
            theirs = bytes(self.notes["call"][other, column])
            replaced = self.notes["number"][other, column] != self.number  # while we read
            if theirs != mine and not replaced:
                raise ValueError(
                    f"the ranks call different collectives: rank {self.rank} calls {call}, "
                    f"rank {other} calls {theirs.decode()}"
                )
