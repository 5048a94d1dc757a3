"""Messages between two ranks: what every algorithm of this book stands on.

A `Transport` knows its rank and how many ranks there are. It sends an array to one of them,
receives one, or does both at once; and it counts what it sends.
"""

import contextlib
from array import array
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from distributed.runtime.trace import Trace

Array = TypeVar("Array", torch.Tensor, np.ndarray, "array[Any]", memoryview)


class Transport:
    """Point-to-point messages of one rank with the others of a process group.

    `rank` is the number of this process, `size` how many there are (the world size), `device` where
    its tensors live. Both sides of a message give arrays of the same size and dtype. Set `trace` to
    a `Trace` and communication is recorded there.
    """

    is_closed = False
    tag = 0  # messages match by tag: what runs in the background has one of its own

    def __init__(self, device: torch.device, backend: dist.ProcessGroup | None = None):
        self.rank = dist.get_rank(backend)
        self.size = dist.get_world_size(backend)
        self.device = device
        self.backend = backend  # None: the group of all ranks
        self.trace: Trace | None = None
        # Of the last messages: gloo makes whoever lets go of one wait for its own thread, unless
        # that has had the time of another message to be done with it.
        self._kept: list[dist.Work] = []
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def send(self, x: Array, to: int) -> None:
        """Give x[...] to rank `to`, which must receive it: the call can wait until it does."""
        with as_tensor(x, writes=False) as tensor, self._traced("send"):
            self._start([(dist.isend, tensor, to)])[0].wait()

    def receive(self, x: Array, source: int) -> Array:
        """Fill x[...] with what rank `source` sends."""
        with as_tensor(x) as tensor, self._traced("receive"):
            self._start([(dist.irecv, tensor, source)])[0].wait()
        return x

    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> Array:
        """Send `outgoing` to one rank while filling `incoming` from another (or the same) one."""
        with (
            as_tensor(outgoing, writes=False) as out,
            as_tensor(incoming) as into,
            self._traced("exchange"),
        ):
            for work in self._start([(dist.irecv, into, source), (dist.isend, out, to)]):
                work.wait()
        return incoming

    def exchanging(
        self, outgoing: torch.Tensor, to: int, n: int, source: int, piece: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Send outgoing[m] while n elements come, both in messages of `piece` elements.

        Yields where in [0, n) a message belongs, and the message. Work on it while the next one is
        under way. There are two buffers only: use each before you ask for the next.
        """
        buffer = self.buffer(2, min(n, piece), outgoing.dtype)
        to_receive = max(1, -(-n // piece))  # messages; an empty array is one, too
        to_send = max(1, -(-len(outgoing) // piece))

        def start(i: int) -> list[dist.Work]:
            messages: list[tuple[Callable[..., Any], torch.Tensor, int]] = []
            if i < to_receive:
                messages.append((dist.irecv, buffer[i % 2][: n - i * piece], source))
            if i < to_send:
                messages.append((dist.isend, outgoing[i * piece : (i + 1) * piece], to))
            return self._start(messages)

        with self._traced("exchange"):
            works = [start(0)]
            for i in range(max(to_receive, to_send)):
                if i + 1 < max(to_receive, to_send):
                    works.append(start(i + 1))
                if i < to_receive:
                    works[i][0].wait()
                    here = slice(i * piece, min(n, (i + 1) * piece))
                    yield here, buffer[i % 2][: here.stop - here.start]
            for batch in works[:to_send]:
                batch[-1].wait()

    def empty_like(self, x: Any) -> Any:
        """An array as x, for what comes: its elements mean nothing yet."""
        if isinstance(x, array | memoryview):
            view = memoryview(x)
            return memoryview(array(view.format, bytes(view.nbytes)))
        return torch.empty_like(x)

    def copy(self, x: Array, into: Array) -> Array:
        """x[...] → into[...] of as many elements."""
        target = in_place(into)
        target.copy_(in_place(x, writes=False).view_as(target))
        return into

    def buffer(self, k: int, n: int, dtype: torch.dtype) -> torch.Tensor:
        """A buffer of [k, n], the same memory each time: to touch new memory takes longer."""
        size = k * n * dtype.itemsize
        if len(self._buffer) < size:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._buffer[:size].view(dtype).view(k, n)

    def _start(
        self, messages: list[tuple[Callable[..., Any], torch.Tensor, int]]
    ) -> list[dist.Work]:
        """Begin to send and to receive, in one batch: NCCL could not match them one by one."""
        self.check_open()
        calls = []
        for call, x, peer in messages:
            self._check_peer("to" if call is dist.isend else "source", peer)
            calls.append(dist.P2POp(call, x, group=self.backend, tag=self.tag, group_peer=peer))
            if self.trace and call is dist.isend:
                self.trace.count_sent(x.nbytes)
            elif self.trace:
                self.trace.count_received(x.nbytes)
        self._kept, before = dist.batch_isend_irecv(calls), self._kept
        del before  # not earlier
        return self._kept

    @contextlib.contextmanager
    def _traced(self, name: str) -> Iterator[Trace | None]:
        with self.trace.span(name, "communication") if self.trace else contextlib.nullcontext():
            yield self.trace

    def check_open(self) -> None:
        """Raise ValueError where the process group has ended."""
        if self.is_closed:
            raise ValueError("this group is closed: use it before close(), within its with block")

    def check_rank(self, name: str, rank: int) -> None:
        """Raise ValueError, with the argument's name, for a rank that there is not."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: the ranks are 0 to {self.size - 1}")

    def _check_peer(self, name: str, rank: int) -> None:
        self.check_rank(name, rank)
        if rank == self.rank:
            raise ValueError(f"{name}={rank}: that is this rank itself")


@contextlib.contextmanager
def as_tensor(
    x: "torch.Tensor | np.ndarray | array[Any] | memoryview", writes: bool = True
) -> Iterator[torch.Tensor]:
    """x as a contiguous tensor on the same memory; what has gaps is copied in, and back out.

    What is only read (`writes=False`) is not copied back: its owner may have changed it since.
    Raises as `in_place` does.
    """
    view = in_place(x, writes)
    tensor = view.contiguous()
    yield tensor
    if writes and tensor is not view and tensor.data_ptr() != view.data_ptr():
        view.copy_(tensor)


def in_place(
    x: "torch.Tensor | np.ndarray | array[Any] | memoryview", writes: bool = True
) -> torch.Tensor:
    """x as a tensor on the same memory.

    An `array.array` of Python, or a `memoryview` of one, is an array, too. Raises TypeError for
    what is no array, and ValueError for an array that is to be written and is read-only (NumPy
    would raise where it is written, PyTorch would write) or in which several elements are one.
    """
    if isinstance(x, array | memoryview):
        x = np.asarray(x)
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        if writes:
            raise ValueError("x is a read-only array, and the result is written into it: copy it")
        x = x.copy()
    tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x.detach()
    if writes and not tensor.is_contiguous() and is_expanded(tensor):
        raise ValueError("x is expanded, several elements in one place: give it as .contiguous()")
    return tensor


def is_expanded(x: torch.Tensor) -> bool:
    """Whether several elements of x are in one place."""
    return any(k > 1 and step == 0 for k, step in zip(x.shape, x.stride(), strict=True))
