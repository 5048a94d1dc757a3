"""A group: what one rank can do together with the others.

Every rank holds a `Group`. It knows its own number and how many ranks there are, and it can send
arrays to one of them, or add, average and copy arrays across all of them.
"""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from distributed.trace import Trace

Array = TypeVar("Array", torch.Tensor, np.ndarray)

REDUCTIONS = {  # gloo has no average of its own: it is a sum, divided
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class Board:
    """Where each rank of one machine writes which collective it calls, for the others to compare.

    Nobody waits here. Whoever comes last to a meeting sees what all others came for, and can say so
    before blocking. A file in shared memory: notes[rank, number % KEPT] = (number, call).
    """

    KEPT = 16  # a source of broadcasts runs ahead of its readers, but not by so many
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
            theirs = self.notes["call"][other, column]
            if theirs != mine:
                raise ValueError(
                    f"the ranks call different collectives: rank {self.rank} calls {call}, "
                    f"rank {other} calls {theirs.decode()}"
                )


class Group:
    """The ranks that work together, as one of them sees them.

    `rank` is the number of this process, `size` how many there are (the world size), `device` where
    its tensors live. Methods work in place and return their array. A collective must be called by
    every rank with the same shape and dtype; a `board` notices when it is not. Set `trace` to a
    `Trace` and communication is recorded there.
    """

    def __init__(self, device: torch.device, board: Board | None = None):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device
        self.board = board
        self.trace: Trace | None = None

    def all_reduce(self, x: Array, op: str = "sum") -> Array:
        """x[...]{partial over ranks} → x[...], equal on every rank.

        `op` is "sum", "avg", "max" or "min". Raises ValueError for another one, and for "avg" of
        integers, which would have to round.
        """
        with self._collective(f"all_reduce {op}", x) as tensor:
            check_op(op, REDUCTIONS, tensor)
            dist.all_reduce(tensor, REDUCTIONS[op])
            if op == "avg":
                tensor /= self.size
        return x

    def broadcast(self, x: Array, source: int = 0) -> Array:
        """x[...] of rank `source` → x[...] on every rank. Raises ValueError for no such rank."""
        self._check_rank("source", source)
        with self._collective(f"broadcast from {source}", x) as tensor:
            dist.broadcast(tensor, source)
        return x

    def send(self, x: Array, to: int) -> None:
        """Give x[...] to rank `to`, which must receive it: the call can wait until it does."""
        self._check_peer("to", to)
        with as_tensor(x) as tensor, self._traced("send") as trace:
            dist.send(tensor, to)
            if trace:
                trace.count_sent(tensor.nbytes)

    def receive(self, x: Array, source: int) -> Array:
        """Fill x[...] with what rank `source` sends."""
        self._check_peer("source", source)
        with as_tensor(x) as tensor, self._traced("receive") as trace:
            dist.recv(tensor, source)
            if trace:
                trace.count_received(tensor.nbytes)
        return x

    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array:
        """Send `outgoing` to one rank while filling `incoming` from another (or the same) one."""
        self._check_peer("to", to)
        self._check_peer("source", source)
        with (
            as_tensor(outgoing) as out,
            as_tensor(incoming) as into,
            self._traced("exchange") as trace,
        ):
            sending = dist.isend(out, to)
            dist.recv(into, source)
            assert sending, "every rank is in the group"
            sending.wait()
            if trace:
                trace.count_sent(out.nbytes)
                trace.count_received(into.nbytes)
        return incoming

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._collective("barrier", torch.empty(0, device=self.device)):
            dist.barrier()

    @contextlib.contextmanager
    def _collective(self, call: str, x: torch.Tensor | np.ndarray) -> Iterator[torch.Tensor]:
        with as_tensor(x) as tensor, self._traced(call) as trace:
            if self.board:
                self.board.announce(f"{call} of {str(tensor.dtype)[6:]}{list(tensor.shape)}")
            if trace:
                trace.handed_over += tensor.nbytes
            yield tensor

    @contextlib.contextmanager
    def _traced(self, name: str) -> Iterator[Trace | None]:
        with self.trace.span(name, "communication") if self.trace else contextlib.nullcontext():
            yield self.trace

    def _check_rank(self, name: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: the ranks are 0 to {self.size - 1}")

    def _check_peer(self, name: str, rank: int) -> None:
        self._check_rank(name, rank)
        if rank == self.rank:
            raise ValueError(f"{name}={rank}: that is this rank itself")


def check_op(op: str, known: Collection[str], x: torch.Tensor) -> None:
    """Raise ValueError for an op that is not known, or that numbers of x's dtype have not got."""
    if op not in known:
        raise ValueError(f"op={op!r}: choose one of {', '.join(known)}")
    if op == "avg" and not x.is_floating_point():
        raise ValueError(f"op='avg' needs floating-point numbers, x has {x.dtype}")


@contextlib.contextmanager
def as_tensor(x: torch.Tensor | np.ndarray) -> Iterator[torch.Tensor]:
    """x as a contiguous tensor on the same memory; what has gaps is copied in, and back out."""
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    view = torch.from_numpy(x) if isinstance(x, np.ndarray) else x.detach()
    tensor = view.contiguous()
    yield tensor
    if tensor is not view and tensor.data_ptr() != view.data_ptr():
        view.copy_(tensor)
