"""Point-to-point messages between two ranks, on which every algorithm of this book is built.

A `Transport` has a rank and the number of ranks. It sends an array to one of them, receives one, or
does both at the same time, and it counts what it sends.
"""

import contextlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist

from distributed.runtime.arrays import Array, as_tensor, in_place
from distributed.runtime.trace import Trace

AHEAD = 1 << 23  # bytes of buffered messages that are requested before they arrive
Message = tuple[Callable[..., Any], torch.Tensor, int]  # dist.isend or dist.irecv, array, peer


class Transport:
    """Point-to-point messages of one rank with the others of a process group.

    `rank` is the number of this process, `size` the number of processes (the world size), and
    `device` has its tensors. Both sides of a message pass arrays of the same size and dtype, and
    messages match by `tag`. If `trace` is set to a `Trace`, it records communication.
    """

    is_closed = False

    def __init__(
        self, device: torch.device, backend: dist.ProcessGroup | None = None, tag: int = 0
    ):
        self.rank = dist.get_rank(backend)
        self.size = dist.get_world_size(backend)
        self.device = device
        self.backend = backend  # None: the group of all ranks
        self.tag = tag
        self.trace: Trace | None = None
        # The last messages: freeing one waits for gloo's thread, unless that thread has already
        # finished with it while the next message was sent.
        self._kept: list[dist.Work] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def send(self, x: Array, to: int) -> None:
        """Send x[...] to rank `to`, which must receive it; the call may block until it does."""
        with as_tensor(x, writes=False) as tensor, self._traced("send"):
            self._start([(dist.isend, tensor, to)])[0].wait()

    def receive(self, x: Array, source: int) -> Array:
        """Fill x[...] with the message from rank `source`."""
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

    def relay(
        self,
        outgoing: Sequence[torch.Tensor],
        to: int,
        incoming: Sequence[torch.Tensor],
        source: int,
        combine: Callable[..., Any] | None = None,
        adds: int = 0,
    ) -> None:
        """Send all of `outgoing`, in order, while a message arrives for each of `incoming`.

        The first `adds` messages are combined with `incoming`, the others replace it. A tensor in
        both lists is sent on after that.
        """
        if not incoming:
            return
        into, ahead = [*incoming], len(incoming)
        if combine and adds:
            longest = max(map(len, incoming[:adds]))
            buffered = min(adds, max(2, AHEAD // max(1, longest * incoming[0].itemsize)))
            buffers = self.buffer(buffered, longest, incoming[0])
            into[:adds] = [buffers[i % buffered][: len(x)] for i, x in enumerate(incoming[:adds])]
            if buffered < adds:
                ahead = buffered  # the next message reuses a buffer
        arriving = [(dist.irecv, x, source) for x in into]
        leaving = [(dist.isend, x, to) for x in outgoing]
        with self._traced("relay"):
            if self.device.type == "cpu":
                # The rest is forwarded, each after one more message has been combined.
                at_once = sum(1 for _ in takewhile(lambda x: x is not incoming[0], outgoing))
                messages = self._relay_ahead(arriving, leaving, ahead, at_once)
            else:
                messages = self._relay_in_batches(arriving, leaving)
            for i, arrived in enumerate(messages):
                if combine and i < adds:
                    combine(incoming[i], arrived, out=incoming[i])

    def _relay_ahead(
        self, arriving: list[Message], leaving: list[Message], ahead: int, at_once: int
    ) -> Iterator[torch.Tensor]:
        """Request messages before the previous ones have arrived, and don't wait for sends.

        gloo sends a message immediately if the other side has requested it. Otherwise the sender
        offers it, and the answer has to wake one of gloo's threads: `python -m bench.cpu` shows the
        cost.
        """
        received, sent = self._start(arriving[:ahead]), self._start(leaving[:at_once])
        for i, (_, arrived, _) in enumerate(arriving):
            received[i].wait()
            yield arrived
            received += self._start(arriving[i + ahead : i + ahead + 1])
            sent += self._start(leaving[at_once + i : at_once + i + 1])
        for work in sent:
            work.wait()

    def _relay_in_batches(
        self, arriving: list[Message], leaving: list[Message]
    ) -> Iterator[torch.Tensor]:
        """Send and receive message i together: NCCL matches messages that start in one batch."""
        for i in range(max(len(arriving), len(leaving))):
            for work in self._start(arriving[i : i + 1] + leaving[i : i + 1]):
                work.wait()
            if i < len(arriving):
                yield arriving[i][1]

    def empty_like(self, x: Any) -> Any:
        """An uninitialized array like x, to receive into."""
        if isinstance(x, array | memoryview):
            view = memoryview(x)
            return memoryview(array(view.format, bytes(view.nbytes)))
        return torch.empty_like(x)

    def copy(self, x: Array, into: Array) -> Array:
        """x[...] → into[...], which has the same number of elements."""
        target = in_place(into)
        target.copy_(in_place(x, writes=False).view_as(target))
        return into

    def buffer(self, k: int, n: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer of [k, n], the same memory each time, because new memory is slower."""
        size = k * n * like.itemsize
        if len(self._buffer) < size or self._buffer.device != like.device:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=like.device)
        return self._buffer[:size].view(like.dtype).view(k, n)

    def check_parts(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Raise ValueError unless whole[N·s] has room for exactly one part[s] per rank."""
        fits = whole.numel() == self.size * part.numel() and whole.dtype == part.dtype
        if not (fits and part.is_contiguous()):
            raise ValueError(
                f"x and out: {self.size} parts of {part.dtype} {list(part.shape)} without gaps "
                f"do not make {whole.dtype} {list(whole.shape)}"
            )

    def parts(self, x: Array, part: Array | None = None) -> list[torch.Tensor]:
        """Views of x[N·s], one per rank: [s] each, or as many elements as `part` has.

        Raises ValueError if x can't be split like that, or only with a copy.
        """
        whole = in_place(x)
        if not whole.is_contiguous():
            raise ValueError(f"x and out: {list(whole.shape)} has gaps, give it as .contiguous()")
        flat = whole.view(-1)
        self.check_parts(whole, flat[: len(flat) // self.size] if part is None else in_place(part))
        return list(flat.tensor_split(self.size))

    def announce(self, call: str, x: Array) -> None:
        """Called before a collective on x. A `Group` compares here what all ranks call."""
        self.check_open()

    def _start(self, messages: Sequence[Message]) -> list[dist.Work]:
        """Start sends and receives; NCCL, on GPUs, matches only those that start in one batch."""
        self.check_open()
        for call, x, peer in messages:
            self._check_peer("to" if call is dist.isend else "source", peer)
            if self.trace and call is dist.isend:
                self.trace.count_sent(x.nbytes)
            elif self.trace:
                self.trace.count_received(x.nbytes)
        if self.device.type == "cpu":
            started = [call(x, None, self.backend, self.tag, peer) for call, x, peer in messages]
        elif messages[0][1].is_cuda and "nccl" not in dist.get_backend_config(self.backend):
            raise ValueError(
                f"{self.device}: gloo has no messages between GPUs. Start one rank per GPU, or "
                "launch with device='cpu'"
            )
        else:
            started = dist.batch_isend_irecv(
                [
                    dist.P2POp(call, x, group=self.backend, tag=self.tag, group_peer=peer)
                    for call, x, peer in messages
                ]
            )
        if started:
            self._kept, before = [*started], self._kept
            del before  # only after the new ones have started
        return started

    @contextlib.contextmanager
    def _traced(self, name: str) -> Iterator[Trace | None]:
        with self.trace.span(name, "communication") if self.trace else contextlib.nullcontext():
            yield self.trace

    def check_open(self) -> None:
        """Raise ValueError if the process group is closed."""
        if self.is_closed:
            raise ValueError("this group is closed: use it before close(), within its with block")

    def check_rank(self, name: str, rank: int) -> None:
        """Raise ValueError, with the argument's name, for a rank out of range."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: the ranks are 0 to {self.size - 1}")

    def _check_peer(self, name: str, rank: int) -> None:
        self.check_rank(name, rank)
        if rank == self.rank:
            raise ValueError(f"{name}={rank}: that is this rank itself")
