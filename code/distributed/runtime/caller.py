"""World of ranks, from the caller's side: sends calls, shows output, collects results.

No call outlives its timeout, and no process outlives its call.
"""

import contextlib
import functools
import inspect
import itertools
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from distributed.runtime.board import Board
from distributed.runtime.fork_server import fork_server
from distributed.runtime.processes import descendants, end_processes
from distributed.runtime.rank import NEVER, RankSpec, choose_backend, main_hidden, start_rank
from distributed.runtime.report import (
    Output,
    RankError,
    RanksHang,
    Screen,
    show_line,
    where_ranks_stand,
)

ENDS = 10  # lines of a traceback that are shown at each end
A_WHILE = 3600.0  # s; the system can't wait for a year in one call
STARTING = threading.Lock()  # concurrent launches take turns at the few lines that start ranks


class World:
    """Ranks that wait for calls until they are dismissed or killed, or until a call fails."""

    def __init__(self, ranks: int, device: str, threads: int | None = None):
        backend, shares_gpu, how = choose_backend(ranks, device)
        check_threads(threads)
        if dist.is_initialized():
            raise RuntimeError("this is a rank, and a rank cannot launch ranks of its own")
        print(f"{ranks} rank{'s' * (ranks > 1)} · {how}", flush=True)
        self.size = ranks
        self.folder = Path(tempfile.mkdtemp(prefix="world-"))  # rendezvous, calls, stacks
        self.call_numbers = itertools.count()
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.outputs: list[Output] = []
        screen = Screen()
        try:
            context = fork_server()
            Board.create(self.folder / "board", ranks)
            with STARTING, main_hidden():
                for rank in range(ranks):
                    spec = RankSpec(rank, ranks, backend, shares_gpu, threads or 1, self.folder)
                    process, pipe, printed = start_rank(context, spec)
                    self.processes.append(process)
                    self.pipes.append(pipe)
                    self.outputs.append(Output(rank, printed, screen))
        except BaseException:
            self.kill()
            raise

    def __call__(self, fn: Callable[..., Any], *args: Any, timeout: float | None = 60.0) -> list:
        """Call `fn(group, *args)` on every rank; return the results in rank order."""
        return self.packed(pack_call(fn, args), timeout)

    def packed(self, call: bytes, timeout: float | None) -> list[Any]:
        """Make a call that `pack_call` packed. Any failure ends the ranks."""
        check_timeout(timeout)
        if not self.processes:
            raise RuntimeError("these ranks have ended; open another world")
        try:
            # Through a file, not the pipes, so a rank that doesn't read can't block the caller.
            file = self.folder / f"call-{next(self.call_numbers)}"
            file.write_bytes(call)
            for pipe in self.pipes:
                with contextlib.suppress(BrokenPipeError):  # _collect says how it died
                    pipe.send(file)
            results = self._collect(timeout)
            for output in self.outputs:
                output.end_call()
            file.unlink()
            return results
        except BaseException:
            self.kill()
            raise

    def _collect(self, timeout: float | None) -> list[Any]:
        started = time.monotonic()
        results: dict[int, Any] = {}
        lives = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        while len(results) < self.size:
            pipes = {pipe: r for r, pipe in enumerate(self.pipes) if r not in results}
            prints = {out.source: out for out in self.outputs if not out.ended}
            remaining = None if timeout is None else started + timeout - time.monotonic()
            if remaining is not None and remaining <= 0:
                stacks = where_ranks_stand(self._stacks(), results)
                raise RanksHang(f"{self.size} ranks, not done after {timeout:g} s:\n{stacks}")
            ready = wait([*pipes, *prints, *lives], remaining and min(remaining, A_WHILE))
            for source in ready:
                if source in prints:
                    prints[source].show()
                    self._check_flood(prints[source], time.monotonic() - started, results)
            for source in ready:
                if source in pipes:
                    with contextlib.suppress(EOFError, ConnectionError):  # the rank died: see below
                        self._take(pipes[source], source.recv(), results)
            for source in ready:
                if source in lives:
                    self._raise_first_cause(lives[source], None)
        return [results[rank] for rank in range(self.size)]

    def _check_flood(self, output: Output, seconds: float, results: dict[int, Any]) -> None:
        """Raise RankError if this rank seems to print without end."""
        if output.is_flood(seconds):
            most = f"{output.FLOOD / 1e6:g} MB in {seconds:.0f} s"
            stacks = where_ranks_stand(self._stacks(), results)
            what = f"printed more than {most}, so all ranks were stopped:\n{stacks}"
            raise RankError(self.outputs.index(output), what)

    def _take(self, rank: int, file: Path, results: dict[int, Any]) -> None:
        """Read the reply of a rank; RankError if it is an error or can't be unpickled here."""
        reply = file.read_bytes()
        file.unlink()
        try:
            kind, value = pickle.loads(reply)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RankError(rank, f"returned what cannot be read here: {what}") from error
        if kind == "error":
            self._raise_first_cause(rank, value)
        results[rank] = value

    def _raise_first_cause(self, rank: int, error: Any) -> None:
        """Raise the error of `rank`, unless a rank died, which causes errors in its peers."""
        lives = {process.sentinel: r for r, process in enumerate(self.processes)}
        dead = [lives[sentinel] for sentinel in wait([*lives], 0.1)]
        if dead:
            self.processes[dead[0]].join()
            code = self.processes[dead[0]].exitcode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited ({code})"
            hint = " (out of memory?)" if code == -9 else ""
            raise RankError(dead[0], f"{how} before it returned{hint}")
        lines = [show_line(*frame) for frame in error["frames"]]
        if (more := len(lines) - 2 * ENDS) > 0:  # endless recursion
            lines[ENDS:-ENDS] = [f"… {more} lines more …"]
        where = "".join(f"\n  {line}" for line in lines)
        raise RankError(rank, f"raised {error['what']}{where}")

    def _stacks(self) -> list[str]:
        """Ask every rank to dump its stack."""
        if not hasattr(signal, "SIGUSR1"):
            return [""] * self.size
        for process in self.processes:
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.2)  # time to write
        files = [self.folder / f"stack-{rank}" for rank in range(self.size)]
        return [file.read_text() if file.exists() else "" for file in files]

    def dismiss(self) -> None:
        """Let the ranks exit by themselves, and show what they still print."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        give_up = time.monotonic() + 5
        for rank, process in enumerate(self.processes):
            process.join(max(0.0, give_up - time.monotonic()))
            if process.is_alive():
                print(f"rank {rank} returned, but a thread of it did not end: killed", flush=True)

    def kill(self) -> None:
        """End every rank now, and remove its processes, pipes and files."""
        alive = [process.pid for process in self.processes if process.is_alive()]
        started = descendants(alive)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            process.close()
        end_processes(started)
        for output in self.outputs:
            output.end_call()
        for end in (*self.pipes, *(output.source for output in self.outputs)):
            end.close()
        self.processes, self.pipes, self.outputs = [], [], []
        shutil.rmtree(self.folder, ignore_errors=True)


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError unless the timeout is None or in the allowed range (s)."""
    if timeout is not None and not 0 < timeout <= NEVER.total_seconds():
        longest = f"{NEVER.days} days"
        raise ValueError(
            f"timeout={timeout!r}: give more than 0 seconds, at most {longest}, or None to wait"
        )


def check_threads(threads: int | None) -> None:
    """Raise ValueError unless `threads` is None or a positive integer."""
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r}: a rank computes with 1 thread or more")


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A call as bytes, code included; TypeError names an argument that doesn't fit or pickle."""
    try:
        inspect.signature(fn).bind("group", *args)
    except TypeError as error:
        raise TypeError(f"{name_of(fn)} is called as fn(group, *args): {error}") from None
    for name, value in [("fn", fn), *((f"argument {i}", arg) for i, arg in enumerate(args))]:
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{name} cannot be sent to the ranks: {error}") from None
    return cloudpickle.dumps((fn, args))


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, of the function in a `functools.partial`, or of an object's class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)
