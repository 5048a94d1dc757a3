"""Messages between two ranks: what every algorithm of this book stands on.

A `Transport` knows its rank and how many ranks there are. It sends an array to one of them,
receives one, or does both at once; and it counts what it sends.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from distributed.trace import Trace

Array = TypeVar("Array", torch.Tensor, np.ndarray)


class Transport:
    """Point-to-point messages of one rank with the others of a process group.

    `rank` is the number of this process, `size` how many there are (the world size), `device` where
    its tensors live. Both sides of a message give arrays of the same size and dtype. Set `trace` to
    a `Trace` and communication is recorded there.
    """

    tag = 0  # messages match by tag: what runs in the background has one of its own

    def __init__(self, device: torch.device, backend: dist.ProcessGroup | None = None):
        self.rank = dist.get_rank(backend)
        self.size = dist.get_world_size(backend)
        self.device = device
        self.backend = backend  # None: the group of all ranks
        self.trace: Trace | None = None

    def send(self, x: Array, to: int) -> None:
        """Give x[...] to rank `to`, which must receive it: the call can wait until it does."""
        self._check_peer("to", to)
        with as_tensor(x) as tensor, self._traced("send") as trace:
            dist.send(tensor, group=self.backend, tag=self.tag, group_dst=to)
            if trace:
                trace.count_sent(tensor.nbytes)

    def receive(self, x: Array, source: int) -> Array:
        """Fill x[...] with what rank `source` sends."""
        self._check_peer("source", source)
        with as_tensor(x) as tensor, self._traced("receive") as trace:
            dist.recv(tensor, group=self.backend, tag=self.tag, group_src=source)
            if trace:
                trace.count_received(tensor.nbytes)
        return x

    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array:
        """Send `outgoing` to one rank while filling `incoming` from another (or the same) one."""
        with as_tensor(outgoing) as out, as_tensor(incoming) as into:
            for _ in self.exchanging(out.view(-1), to, into.view(-1), source):
                pass
        return incoming

    def exchanging(
        self,
        outgoing: torch.Tensor,
        to: int,
        incoming: torch.Tensor,
        source: int,
        piece: int | None = None,
    ) -> Iterator[slice]:
        """`exchange` of flat tensors, in messages of `piece` numbers (None: in one message).

        Yields where in `incoming` a message has come, so that work on it can begin before the rest
        is there.
        """
        self._check_peer("to", to)
        self._check_peer("source", source)
        with self._traced("exchange") as trace:
            into = incoming.split(piece or max(1, len(incoming)))
            gone = outgoing.split(piece or max(1, len(outgoing)))
            # As one batch: under NCCL, a send that stands before its receive waits for ever.
            calls = [self._message(dist.irecv, part, source) for part in into]
            calls += [self._message(dist.isend, part, to) for part in gone]
            start = 0
            for i, work in enumerate(dist.batch_isend_irecv(calls)):
                work.wait()
                if i < len(into):
                    yield slice(start, start := start + len(into[i]))
            if trace:
                for part in gone:
                    trace.count_sent(part.nbytes)
                trace.count_received(incoming.nbytes)

    def _message(self, call: Callable[..., Any], x: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, x, group=self.backend, tag=self.tag, group_peer=peer)

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
