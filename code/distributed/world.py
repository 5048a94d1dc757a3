"""A world of ranks: run one function in several processes at once.

`launch(fn, ranks=4)` starts four processes, joins them into one group, calls `fn(group)` in each
and returns the four results in rank order. No call outlives its timeout, and no process outlives
its call.
"""

import contextlib
import inspect
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from distributed.group import Group
from distributed.rank import Place, be_a_rank, choose_backend
from distributed.report import Output, RankError, show_line, where_ranks_stand
from distributed.script import join_torchrun, speaking_as, under_torchrun

STARTING = threading.Lock()  # two launches at once take turns at the few lines that start ranks


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    device: str = "auto",
    threads: int = 1,
    timeout: float | None = 60.0,
) -> list[Any]:
    """Call `fn(group, *args)` in each of `ranks` processes; return the results in rank order.

    `device` is "auto", "cpu" or "cuda"; `threads` is how many compute threads each rank has;
    `timeout` is in seconds. Under torchrun this process is a rank already: `fn` runs here, in the
    world that is there. Raises ValueError or TypeError before any process starts when an argument
    is wrong, RankError when a rank raises or dies, and TimeoutError, with the line on which each
    rank stands, when they do not finish.
    """
    __tracebackhide__ = True  # a reader's traceback leads from the cell to the error
    if under_torchrun():
        return _run_as_torchrun_rank(fn, args, device)
    check_timeout(timeout)
    call = pack_call(fn, args)
    with world(ranks, device, threads) as run:
        return run.packed(call, timeout)


@contextlib.contextmanager
def world(ranks: int = 4, device: str = "auto", threads: int = 1) -> Iterator["World"]:
    """Keep ranks warm for many calls: `with world(4) as run: run(fn, 1); run(fn, 2)`."""
    run = World(ranks, device, threads)
    try:
        yield run
        run.dismiss()
    finally:
        run.kill()


class World:
    """The caller's side of a set of ranks: hands out calls, shows output, collects results."""

    def __init__(self, ranks: int, device: str, threads: int):
        backend, shares_gpu, how = choose_backend(ranks, device)
        if threads < 1:
            raise ValueError(f"threads={threads!r}: a rank computes with 1 thread or more")
        if dist.is_initialized():
            raise RuntimeError("this is a rank, and a rank cannot launch ranks of its own")
        print(f"{ranks} rank{'s' * (ranks > 1)} · {how}", flush=True)
        self.size = ranks
        self.folder = Path(tempfile.mkdtemp(prefix="world-"))  # rendezvous, calls, stacks
        self.call_numbers = itertools.count()
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.outputs: list[Output] = []
        context = fork_server()
        try:
            with STARTING, _main_hidden():
                for rank in range(ranks):
                    place = Place(rank, ranks, backend, shares_gpu, threads, self.folder)
                    self._start(context, place)
        except BaseException:
            self.kill()
            raise

    def _start(self, context: Any, place: Place) -> None:
        pipe, its_pipe = context.Pipe()
        printed, its_output = context.Pipe(duplex=False)
        process = context.Process(
            target=be_a_rank,
            args=(place, its_pipe, its_output, dict(os.environ)),
            name=f"rank {place.rank}",
        )
        self.pipes.append(pipe)
        self.outputs.append(Output(place.rank, printed))
        process.start()
        self.processes.append(process)
        its_pipe.close()
        its_output.close()

    def __call__(self, fn: Callable[..., Any], *args: Any, timeout: float | None = 60.0) -> list:
        """Call `fn(group, *args)` on every rank; return the results in rank order."""
        __tracebackhide__ = True
        return self.packed(pack_call(fn, args), timeout)

    def packed(self, call: bytes, timeout: float | None) -> list[Any]:
        """Make a call that `pack_call` packed. After any failure the ranks are gone."""
        __tracebackhide__ = True
        check_timeout(timeout)
        if not self.processes:
            raise RuntimeError("these ranks have ended; open another world")
        try:
            # By a file, not by the pipes: a rank that does not read cannot block the caller.
            file = self.folder / f"call-{next(self.call_numbers)}"
            file.write_bytes(call)
            for pipe in self.pipes:
                with contextlib.suppress(BrokenPipeError):  # it is dead; _collect says how
                    pipe.send(str(file))
            results = self._collect(timeout)
            file.unlink()
            return results
        except BaseException:
            self.kill()
            raise

    def _collect(self, timeout: float | None) -> list[Any]:
        __tracebackhide__ = True
        started = time.monotonic()
        results: dict[int, Any] = {}
        lives = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        while len(results) < self.size:
            pipes = {pipe: r for r, pipe in enumerate(self.pipes) if r not in results}
            prints = {out.source: out for out in self.outputs if not out.ended}
            left = None if timeout is None else started + timeout - time.monotonic()
            if left is not None and left <= 0:
                stacks = where_ranks_stand(self._stacks(), results)
                raise TimeoutError(f"{self.size} ranks, not done after {timeout:g} s:\n{stacks}")
            ready = wait([*pipes, *prints, *lives], left)
            for source in ready:
                if source in prints:
                    prints[source].show()
            for source in ready:
                if source in pipes:
                    with contextlib.suppress(EOFError, ConnectionError):  # it died: see below
                        kind, value = pickle.loads(source.recv_bytes())
                        if kind == "error":
                            self._raise_first_cause(pipes[source], value)
                        results[pipes[source]] = value
            for source in ready:
                if source in lives:
                    self._raise_first_cause(lives[source], None)
        for output in self.outputs:  # what was printed just before the result
            output.show()
        return [results[rank] for rank in range(self.size)]

    def _raise_first_cause(self, rank: int, error: Any) -> None:
        """Raise the error of `rank`, unless a rank died: then its peers' errors are echoes."""
        __tracebackhide__ = True
        lives = {process.sentinel: r for r, process in enumerate(self.processes)}
        dead = [lives[sentinel] for sentinel in wait([*lives], 0.1)]
        for output in self.outputs:
            output.show()
        if dead:
            self.processes[dead[0]].join()
            code = self.processes[dead[0]].exitcode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited ({code})"
            hint = " (out of memory?)" if code == -9 else ""
            raise RankError(dead[0], f"{how} before it returned{hint}")
        where = "".join(f"\n  {show_line(*frame)}" for frame in error["frames"])
        raise RankError(rank, f"raised {error['what']}{where}")

    def _stacks(self) -> list[str]:
        """Ask every rank to write down where it stands."""
        if not hasattr(signal, "SIGUSR1"):
            return [""] * self.size
        for process in self.processes:
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.2)  # time to write
        files = [self.folder / f"stack-{rank}" for rank in range(self.size)]
        return [file.read_text() if file.exists() else "" for file in files]

    def dismiss(self) -> None:
        """Let the ranks end by themselves; what they still print is shown."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        give_up = time.monotonic() + 5
        for process in self.processes:
            process.join(max(0.0, give_up - time.monotonic()))
        for output in self.outputs:
            output.show()

    def kill(self) -> None:
        """End every rank now and keep nothing of it: no process, no pipe, no file."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for end in (*self.pipes, *(output.source for output in self.outputs)):
            end.close()
        self.processes, self.pipes, self.outputs = [], [], []
        shutil.rmtree(self.folder, ignore_errors=True)


def fork_server() -> Any:
    """The way ranks start: forked, in milliseconds, from a process that has torch and no threads.

    Forking the caller itself would copy locks that its threads hold; a fresh Python for each rank
    would import torch each time. Where there is no fork server (Windows), each rank is fresh.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["torch", "torch.distributed", "numpy", "cloudpickle"])
    return context


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would run it again in every rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError for a time that nobody can keep."""
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout={timeout!r}: give more than 0 seconds, or None to wait")


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A call as bytes, code included; TypeError names what does not fit or cannot be sent."""
    try:
        inspect.signature(fn).bind("group", *args)
    except TypeError as error:
        raise TypeError(f"{fn.__name__} is called as fn(group, *args): {error}") from None
    for name, value in [("fn", fn), *((f"argument {i}", arg) for i, arg in enumerate(args))]:
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{name} cannot be sent to the ranks: {error}") from None
    return cloudpickle.dumps((fn, args))


def _run_as_torchrun_rank(fn: Callable[..., Any], args: tuple[Any, ...], device: str) -> list:
    backend, shares_gpu, how = choose_backend(int(os.environ["LOCAL_WORLD_SIZE"]), device)
    join_torchrun(backend)
    size = dist.get_world_size()
    place = Place(int(os.environ["LOCAL_RANK"]), size, backend, shares_gpu, 1, Path())
    group = Group(place.device)
    print(f"{size} ranks · {how} · torchrun", flush=True)
    with speaking_as(group.rank):
        result = fn(group, *args)
    results: list[Any] = [None] * size
    dist.all_gather_object(results, result)
    return results
