"""A group: what one rank can do together with all others.

Every rank holds a `Group`. Beside messages to one rank it has collectives, which every rank must
call: they add, average, cut up and copy arrays across all of them, and here the backend does it.
"""

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distributed.runtime.arrays import (
    COMBINE,
    Array,
    as_bytes,
    as_tensor,
    check_op,
    divide,
    divisors,
    in_place,
)
from distributed.runtime.board import Board
from distributed.runtime.hosts import ranks_here, say_where
from distributed.runtime.queue import Handle, Queue
from distributed.runtime.transport import Transport

CPU = torch.device("cpu")
REDUCTIONS = {  # gloo has no average of its own: it is a sum, divided
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}
# algorithm(wire, flat x, combine): x[n]{partial over ranks} → x[n], by messages on the wire
Algorithm = Callable[[Transport, torch.Tensor, Callable[..., Any]], None]


class Group(Transport):
    """The ranks that work together, as one of them sees them.

    Beside what a `Transport` has, `local_size` says how many ranks share a host. Methods work in
    place and return their array; with `async_op=True` they return a `Handle` at once. A collective
    must be called by every rank with the same shape and dtype; a `board` notices when it is not.
    `launch` gives one. Where you make a group yourself, give `Board.of_hosts(local_rank, here)`:
    without a board ranks that differ hang, are aborted by gloo, or get a wrong result.

    What runs where, in this and every other kind of group: arrays live on `device`, NumPy arrays on
    the CPU; results stand where x or `out` is, in its dtype. Sums are made in x's dtype and each of
    the N − 1 is rounded to it, but for shared memory, which adds 16 bits in float32 and rounds
    once. Means are sums, divided as `divisors` says.

    Collectives start in program order, synchronous or not: see `Queue`. A group that works on the
    same ranks by other means takes the `queue` of the one that it is made from.

    `close()`, or the end of a `with` block, gives back the sockets and threads of what `split` made
    of it; `launch` and `world` close what is left when a call is over.
    """

    algorithm: Algorithm | None = None  # of `all_reduce`; None: what the backend chooses

    def __init__(
        self,
        device: torch.device,
        board: Board | None = None,
        local_size: int | None = None,
        backend: dist.ProcessGroup | None = None,
        queue: Queue | None = None,
    ):
        super().__init__(device, backend)
        self.board = board
        self._local_size = local_size
        if local_size is None:
            say_where(world_store(), dist.get_rank())
        self.queue = queue or Queue(beside=Transport(device, backend, tag=1))
        self.parts_made: list[Group] = []  # by `split`, and not closed
        self.split_off: Group | None = None  # from which one: its process group ends with it

    @classmethod
    def default(cls) -> "Group":
        """The default process group of torch.distributed, in any program that has one.

        On the current CUDA device if its back end is NCCL, else on the CPU; without a board. How
        many ranks share a host is what torchrun says in LOCAL_WORLD_SIZE, else ranks compare their
        hosts' names. Raises RuntimeError where there is no process group.
        """
        if not dist.is_initialized():
            raise RuntimeError("no process group: call torch.distributed.init_process_group first")
        on_gpu = torch.cuda.is_available() and "nccl" in dist.get_backend_config()
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else CPU
        return cls(device, local_size=int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or None)

    @property
    def local_size(self) -> int:
        """How many of these ranks share a host."""
        if self._local_size is None:
            ranks = dist.get_process_group_ranks(self.backend or dist.group.WORLD)
            self._local_size = len(ranks_here(world_store(), ranks))
        return self._local_size

    def close(self, wait: bool = True) -> None:
        """End what was split off this group, and it, too, if it was split off another.

        All its ranks call this, and `wait` for each other: where one has ended its side, another
        could not finish what it is at, were it only to connect. The group of all ranks can be used
        again.
        """
        for part in [*self.parts_made]:
            part.close(wait)
        self.queue.close()
        if self.split_off:
            if wait:
                self.barrier()
            self.split_off.parts_made.remove(self)
            self.split_off, self.is_closed = None, True
            with contextlib.suppress(ValueError):  # PyTorch has been told to end it
                dist.destroy_process_group(self.backend)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:  # else the others may never come
            self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Group":
        return self  # these ranks, their queue and their board are there once

    def __reduce__(self) -> Any:
        """What holds the group of all ranks can be saved: loaded, it has the default group."""
        if type(self) is not Group or self.size != dist.get_world_size():
            raise TypeError(
                f"a {type(self).__name__} of {self.size} ranks cannot be saved, only the group of "
                "all ranks: save a state_dict()"
            )
        return Group.default, ()

    costly_buffers = False  # whether `empty` takes long: then keep a buffer, and use it again

    def empty(self, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """x[n], its elements undefined, where this group's collectives reach it best."""
        return torch.empty(n, dtype=dtype, device=self.device)

    def all_reduce(self, x: Array, op: str = "sum", async_op: bool = False) -> Any:
        """x[...]{partial over ranks} → x[...], equal on every rank.

        `op` is one of REDUCTIONS. The backend adds in x's dtype, and rounds each of the N − 1 sums
        to it; the mean of float16 is divided as `divisors` says. Raises ValueError for another op,
        and for "avg" of integers, which would have to round.
        """
        if self.algorithm:
            return self.reduce_by(self.algorithm, x, op, async_op)

        def start(tensor: torch.Tensor) -> Any:
            divide(tensor, divisors(op, self.size, tensor.dtype).before)
            return dist.all_reduce(tensor, REDUCTIONS[op], self.backend, async_op=True)

        return self._by_backend(f"all_reduce {op}", x, start, async_op, op)

    def reduce_scatter(
        self, x: torch.Tensor, out: torch.Tensor, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[N·s]{partial over ranks} → out[s]: rank r gets the r-th of N equal parts.

        x is spent: what is left in it means nothing, in any kind of group. `out` may be this rank's
        part of x. Sums are made as in `all_reduce`.
        """

        self.check_parts(x, out)

        def start(tensor: torch.Tensor) -> Any:
            divide(tensor, divisors(op, self.size, tensor.dtype).before)
            return _reduce_scatter(out, tensor, REDUCTIONS[op], group=self.backend, async_op=True)

        return self._by_backend(f"reduce_scatter {op}", x, start, async_op, op, out)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, async_op: bool = False) -> Any:
        """x[s], another one on each rank → out[N·s], equal on every rank, in rank order."""

        self.check_parts(out, x)

        def start(tensor: torch.Tensor) -> Any:
            to, mine = as_bytes(out), as_bytes(tensor)
            return _all_gather(to, mine, group=self.backend, async_op=True)

        return self._by_backend("all_gather", x, start, async_op, out=out)

    def broadcast(self, x: Array, root: int = 0, async_op: bool = False) -> Any:
        """x[...] of rank `root` → x[...] on every rank. Raises ValueError for no such rank."""
        self.check_rank("root", root)

        def start(tensor: torch.Tensor) -> Any:
            x = as_bytes(tensor)
            return dist.broadcast(x, group=self.backend, group_src=root, async_op=True)

        return self._by_backend(f"broadcast from {root}", x, start, async_op)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        nothing = torch.empty(0, device=self.device)
        self._by_backend("barrier", nothing, lambda _: dist.barrier(self.backend, async_op=True))

    def split(self, colour: int) -> "Group":
        """The ranks that gave the same colour, as a group of their own; every rank must call it.

        Groups that have no rank in common can be split at the same time. A part waits as long in
        its collectives as this group does. A part of a `RingGroup` or `SharedGroup` is one, too.
        Close it, or use it in a `with` block.
        """
        # Parts need names that no other group has, made meanwhile by whatever other ranks. So each
        # rank draws a number that is drawn once in the world, and a part takes that of its first.
        drawn = world_store().add("parts of groups", 1)
        table = torch.zeros(self.size, 2, dtype=torch.int64, device=self.device)
        table[self.rank] = torch.tensor([colour, drawn])
        members = [i for i, (one, _) in enumerate(self.all_reduce(table).tolist()) if one == colour]
        everyone = dist.get_process_group_ranks(self.backend or dist.group.WORLD)
        ours = [everyone[i] for i in members]
        timeout = timeout_of(self.backend, self.device)
        backend = new_group(ours, int(table[members[0], 1]), timeout)
        board = self.board.part(ours, backend) if self.board else None
        part = self.alike(Group(self.device, board, board.here if board else None, backend))
        part.trace, part.split_off = self.trace, self
        self.parts_made.append(part)
        return part

    def alike(self, part: "Group") -> "Group":
        """`part`, which `split` made, as a group that works by the means of this one."""
        return part

    def reduce_by(
        self, algorithm: Algorithm, x: Array, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[...]{partial over ranks} → x[...] by `algorithm(wire, flat x, combine)`, in its turn.

        The algorithm sends what it adds up, so sums are made in x's dtype, and rounded to it. A
        mean is divided as `divisors` says.
        """

        def work(wire: Transport, tensor: torch.Tensor) -> None:
            flat = tensor.view(-1)
            before, after = divisors(op, self.size, flat.dtype)
            divide(flat, before)
            algorithm(wire, flat, COMBINE[op])
            divide(flat, after)

        return self.in_turn(f"all_reduce {op} by {algorithm.__name__}", x, work, op, async_op)

    def in_turn(
        self,
        call: str,
        x: Any,
        work: Callable[[Transport, torch.Tensor], Any],
        op: str = "sum",
        async_op: bool = False,
        out: Any = None,
    ) -> Any:
        """A collective that `work(wire, tensor)` does itself: check, announce, do it in its turn.

        x becomes a contiguous tensor here, and nowhere else. Returns `out` (x, if there is none),
        or with `async_op` a Handle immediately. Raises ValueError for an op that isn't defined, or
        not for x's dtype, before anything is sent.
        """
        finish, tensor = self._enter(call, x, op, out)
        result = x if out is None else out
        if async_op:
            return self.in_background(result, lambda wire: work(wire, tensor), finish.close)
        with finish:
            work(self.queue.wait_turn(self), tensor)
        return result

    def _enter(
        self, call: str, x: Any, op: str, out: Any
    ) -> tuple[contextlib.ExitStack, torch.Tensor]:
        """The entrance of every collective: x as a contiguous tensor, and what copies it back."""
        finish = contextlib.ExitStack()
        tensor = finish.enter_context(as_tensor(x, writes=out is None))
        check_op(op, REDUCTIONS, tensor)
        self.announce(call, tensor)
        return finish, tensor

    def in_background(
        self, x: Any, work: Callable[[Transport], Any], finish: Callable[[], None] = lambda: None
    ) -> Handle:
        """Do `work(wire)` in its turn, beside what this rank does. The handle returns x."""
        beside, trace = self.queue.beside, self.trace

        def work_beside() -> None:
            beside.trace = trace
            work(beside)

        return Handle(x, self.queue.submit(work_beside), finish)

    def announce(self, call: str, x: Array) -> None:
        """Tell the other ranks of a collective on x, if there is a board; see `Board.announce`."""
        self.check_open()
        if self.board:
            seen = x if isinstance(x, torch.Tensor) else in_place(x, writes=False)
            self.board.announce(f"{call} of {str(seen.dtype)[6:]}{list(seen.shape)}")

    def _by_backend(
        self,
        call: str,
        x: Any,
        start: Callable[[torch.Tensor], Any],
        async_op: bool = False,
        op: str = "sum",
        out: Any = None,
    ) -> Any:
        """A collective of the backend, which `start(tensor)` begins, and which then runs itself.

        Otherwise as `in_turn`.
        """
        finish, tensor = self._enter(call, x, op, out)
        after = divisors(op, self.size, tensor.dtype).after
        finish.callback(divide, tensor if out is None else out, after)
        if self.queue.is_free():
            wait = self._recorded(call, tensor, start)
        else:
            wait = self.queue.submit(lambda: self._recorded(call, tensor, start)())
        handle = Handle(x if out is None else out, wait, finish.close)
        return handle if async_op else handle.wait()

    def _recorded(
        self, call: str, tensor: torch.Tensor, start: Callable[[torch.Tensor], Any]
    ) -> Callable[[], Any]:
        """Begin what `start` begins, and record in the trace when it ends; what waits for it."""
        trace = self.trace
        if trace is None:
            return start(tensor).wait
        span = trace.begin(call, "communication")
        work = start(tensor)
        trace.handed_over += tensor.nbytes
        recorded = work.get_future().then(lambda _: trace.end(span))

        def wait() -> None:
            # First as without a trace: only this orders NCCL's stream, and raises its errors.
            work.wait()
            recorded.wait()

        return wait


def world_store() -> dist.Store:
    """Where the ranks of the default process group leave notes for each other."""
    world = dist.group.WORLD
    assert world is not None, "the ranks have met"
    return world.get_group_store()


def timeout_of(backend: dist.ProcessGroup | None, device: torch.device) -> timedelta:
    """How long a process group's collectives wait (None: the group of all ranks)."""
    group = backend or dist.group.WORLD
    assert group is not None, "the ranks have met"
    return group._get_backend(device).options._timeout


def new_group(ranks: list[int], number: int, timeout: timedelta) -> dist.ProcessGroup:
    """`ranks` as a process group, called by these alone; `number` is in no other group's name.

    PyTorch names a group by how many its own process has made: two groups without a common rank
    then have one name, and meet in one place of the store. There is no other way to say the name.
    """
    names = dist.distributed_c10d._world
    groups_made = names.group_count
    names.group_count = 1_000_000 + number  # above what PyTorch counts
    try:
        return dist.new_group(ranks, timeout)
    finally:
        names.group_count = groups_made


def _name_in_torch(new: str, old: str) -> Callable[..., Any]:
    """A collective that torch 2.13 renamed."""
    return getattr(dist, new, None) or getattr(dist, old)


_reduce_scatter = _name_in_torch("reduce_scatter_single", "reduce_scatter_tensor")
_all_gather = _name_in_torch("all_gather_single", "all_gather_into_tensor")
