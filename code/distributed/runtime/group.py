"""Process group: the collectives that a rank runs together with all other ranks.

Every rank holds a `Group`. Besides messages to one rank it has collectives, which every rank must
call. They sum, average, scatter and copy arrays across ranks, and here the backend runs them.
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
REDUCTIONS = {  # gloo can't average, so "avg" is a sum, divided
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}
# algorithm(wire, flat x, combine): x[n]{partial over ranks} → x[n], by messages on the wire
Algorithm = Callable[[Transport, torch.Tensor, Callable[..., Any]], None]


class Group(Transport):
    """A set of ranks that work together, as one of them sees it.

    `local_size` is the number of ranks per host; the rest is as in `Transport`. Methods work in
    place and return their array, or with `async_op=True` immediately a `Handle`. Every rank must
    call a collective with the same shape and dtype, and a `board` detects if one doesn't. `launch`
    passes a board. If you make a group yourself, pass `Board.of_hosts(local_rank, here)`: without a
    board, ranks that call different collectives hang, are aborted by gloo, or get a wrong result.

    In every kind of group, arrays are on `device` (NumPy arrays on the CPU), and a result is
    written to x or `out`, in its dtype. Sums are made in x's dtype, and each of the N − 1 sums is
    rounded to it. Only shared memory adds 16-bit numbers in float32 and rounds once. Means are
    sums, divided as `divisors` says.

    Collectives start in program order, synchronous or not: see `Queue`. If a group wraps a
    group of the same ranks to use its own algorithms, both share one `queue`.

    `close()`, or the end of a `with` block, frees the sockets and threads of the groups that
    `split` made from this one. `launch` and `world` close the rest when a call returns.
    """

    algorithm: Algorithm | None = None  # of `all_reduce`; None: the backend's

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
        self.parts_made: list[Group] = []  # by `split`, and still open
        self.split_off: Group | None = None  # the group that `split` made this one from

    @classmethod
    def default(cls) -> "Group":
        """The default process group of torch.distributed, in any program that has one.

        It uses the current CUDA device if the backend is NCCL, else the CPU, and has no board.
        `local_size` comes from torchrun's LOCAL_WORLD_SIZE; without it, ranks compare their hosts'
        names. Raises RuntimeError if there is no process group.
        """
        if not dist.is_initialized():
            raise RuntimeError("no process group: call torch.distributed.init_process_group first")
        on_gpu = torch.cuda.is_available() and "nccl" in dist.get_backend_config()
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else CPU
        return cls(device, local_size=int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or None)

    @property
    def local_size(self) -> int:
        """Number of these ranks on this host."""
        if self._local_size is None:
            ranks = dist.get_process_group_ranks(self.backend or dist.group.WORLD)
            self._local_size = len(ranks_here(world_store(), ranks))
        return self._local_size

    def close(self, wait: bool = True) -> None:
        """Close the groups split off from this one, and this one if `split` made it.

        All its ranks call this and `wait` for each other, because once a rank has closed its side,
        the others can't finish what they have begun, not even connecting. The group of all ranks
        can be used again.
        """
        for part in [*self.parts_made]:
            part.close(wait)
        self.queue.close()
        if self.split_off:
            if wait:
                self.barrier()
            self.split_off.parts_made.remove(self)
            self.split_off, self.is_closed = None, True
            with contextlib.suppress(ValueError):  # already destroyed through PyTorch
                dist.destroy_process_group(self.backend)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:  # after an error, the other ranks may never arrive
            self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Group":
        return self  # the ranks, their queue and their board can't be copied

    def __reduce__(self) -> Any:
        """Pickle the group of all ranks only; unpickling returns the default group."""
        if type(self) is not Group or self.size != dist.get_world_size():
            raise TypeError(
                f"a {type(self).__name__} of {self.size} ranks cannot be saved, only the group of "
                "all ranks: save a state_dict()"
            )
        return Group.default, ()

    costly_buffers = False  # whether `empty` is slow, so that buffers should be kept and reused

    def empty(self, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """x[n], uninitialized, in the memory that suits this group's collectives best."""
        return torch.empty(n, dtype=dtype, device=self.device)

    def all_reduce(self, x: Array, op: str = "sum", async_op: bool = False) -> Any:
        """x[...]{partial over ranks} → x[...], equal on every rank.

        `op` is one of REDUCTIONS. The backend adds in x's dtype and rounds each of the N − 1 sums
        to it; a mean of float16 is divided as `divisors` says. Raises ValueError for an unknown op,
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

        In every kind of group, the contents of x are undefined afterward. `out` may be this rank's
        part of x. Sums are made as in `all_reduce`.
        """

        self.check_parts(x, out)

        def start(tensor: torch.Tensor) -> Any:
            divide(tensor, divisors(op, self.size, tensor.dtype).before)
            return _reduce_scatter(out, tensor, REDUCTIONS[op], group=self.backend, async_op=True)

        return self._by_backend(f"reduce_scatter {op}", x, start, async_op, op, out)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, async_op: bool = False) -> Any:
        """x[s], different on each rank → out[N·s], equal on every rank, in rank order."""

        self.check_parts(out, x)

        def start(tensor: torch.Tensor) -> Any:
            to, mine = as_bytes(out), as_bytes(tensor)
            return _all_gather(to, mine, group=self.backend, async_op=True)

        return self._by_backend("all_gather", x, start, async_op, out=out)

    def broadcast(self, x: Array, root: int = 0, async_op: bool = False) -> Any:
        """x[...] of rank `root` → x[...] on every rank. ValueError if out of range."""
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
        """Subgroup of the ranks that passed the same colour; every rank must call it.

        Groups that have no rank in common can be split at the same time. A part has this group's
        timeout and its kind: a part of a `RingGroup` is a `RingGroup`, and so for `SharedGroup`.
        Close it, or use it in a `with` block.
        """
        # Each part needs a unique name, even if other ranks make groups at the same time. So each
        # rank draws a number that is unique in the world, and a part takes its first rank's number.
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
        """`part`, which `split` made, as a group of the same kind as this one."""
        return part

    def reduce_by(
        self, algorithm: Algorithm, x: Array, op: str = "sum", async_op: bool = False
    ) -> Any:
        """x[...]{partial over ranks} → x[...] by `algorithm(wire, flat x, combine)`, in its turn.

        The algorithm sends partial sums, so each sum is made in x's dtype and rounded to it. A mean
        is divided as `divisors` says.
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
        """A collective that `work(wire, tensor)` runs: check it, announce it, run it in its turn.

        Only here does x become a contiguous tensor. Returns `out` (x, if there is none), or with
        `async_op` a Handle immediately. Raises ValueError before anything is sent, if the op isn't
        defined at all or isn't defined for x's dtype.
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
        """Start of every collective: the stack that copies x back, and x as a contiguous tensor."""
        finish = contextlib.ExitStack()
        tensor = finish.enter_context(as_tensor(x, writes=out is None))
        check_op(op, REDUCTIONS, tensor)
        self.announce(call, tensor)
        return finish, tensor

    def in_background(
        self, x: Any, work: Callable[[Transport], Any], finish: Callable[[], None] = lambda: None
    ) -> Handle:
        """Run `work(wire)` in its turn, in a second thread. The handle returns x."""
        beside, trace = self.queue.beside, self.trace

        def work_beside() -> None:
            beside.trace = trace
            work(beside)

        return Handle(x, self.queue.submit(work_beside), finish)

    def announce(self, call: str, x: Array) -> None:
        """Announce a collective on x to the other ranks, if there is a board: `Board.announce`."""
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
        """A collective of the backend, which `start(tensor)` begins and the backend then runs.

        Arguments, result and errors are those of `in_turn`.
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
        """Call `start`, record in the trace when its work ends, and return what waits for it."""
        trace = self.trace
        if trace is None:
            return start(tensor).wait
        span = trace.begin(call, "communication")
        work = start(tensor)
        trace.handed_over += tensor.nbytes
        recorded = work.get_future().then(lambda _: trace.end(span))

        def wait() -> None:
            # Wait for the work itself, too: only this orders NCCL's stream and raises its errors.
            work.wait()
            recorded.wait()

        return wait


def world_store() -> dist.Store:
    """Key-value store of the default process group."""
    world = dist.group.WORLD
    assert world is not None, "the ranks have met"
    return world.get_group_store()


def timeout_of(backend: dist.ProcessGroup | None, device: torch.device) -> timedelta:
    """Timeout of a process group's collectives (backend None: the group of all ranks)."""
    group = backend or dist.group.WORLD
    assert group is not None, "the ranks have met"
    return group._get_backend(device).options._timeout


def new_group(ranks: list[int], number: int, timeout: timedelta) -> dist.ProcessGroup:
    """`ranks` as a process group. Only these ranks call it; `number` is unique to this group.

    PyTorch names a group by how many groups its process has made. Two groups without a common rank
    could then get the same name, and share keys of the store. This is the only way to set the name.
    """
    names = dist.distributed_c10d._world
    groups_made = names.group_count
    names.group_count = 1_000_000 + number  # above what PyTorch counts
    try:
        return dist.new_group(ranks, timeout)
    finally:
        names.group_count = groups_made


def _name_in_torch(new: str, old: str) -> Callable[..., Any]:
    """A collective of torch.distributed that torch 2.13 renamed."""
    return getattr(dist, new, None) or getattr(dist, old)


_reduce_scatter = _name_in_torch("reduce_scatter_single", "reduce_scatter_tensor")
_all_gather = _name_in_torch("all_gather_single", "all_gather_into_tensor")
