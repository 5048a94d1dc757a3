"""`launch` and `world` in a tab: the ranks are workers, which are reused from call to call.

Both have the same signatures, and raise the same errors, as those in `distributed.launching`.
"""

import contextlib
import inspect
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from distributed.runtime.report import RankError, RanksHang, show_line, where_ranks_stand

MOST = 8  # ranks; each of them is a whole Python
TO_STOP = 3.0  # s; a rank that has not answered by then is replaced by a new one


class Ranks:
    """The ranks of this tab, as the caller sees them. `mail` is its side of the mailboxes."""

    def __init__(self, mail: Any):
        self.mail = mail
        self.ready: set[int] = set()

    def call(self, fn: Callable[..., Any], args: tuple, ranks: int, timeout: float | None) -> list:
        """Call `fn(group, *args)` on the first `ranks` of them; returns results in rank order."""
        packed = pack_call(fn, args)
        self.wait_for(ranks)
        self.mail.begin(ranks)
        for rank in range(ranks):
            self.mail.send(rank, pickle.dumps((ranks, packed)))
        call = Call(self, ranks)
        try:
            return call.collect(timeout)
        finally:
            call.end()

    def wait_for(self, ranks: int) -> None:
        """Start ranks until this number is ready."""
        self.mail.need(ranks)
        while not self.ready >= set(range(ranks)):
            self.next(None)

    def next(self, seconds: float | None) -> tuple[int, Any] | None:
        """Next message from any rank, as (rank, message); None after `seconds`."""
        source = self.mail.wait(-1 if seconds is None else max(0.0, seconds) * 1e3)
        if source == -1:
            raise KeyboardInterrupt
        if source == -2:
            return None
        said = pickle.loads(self.mail.take(source).to_bytes())
        if said[0] == "ready":
            self.ready.add(source)
        return source, said


class Call:
    """One call on all ranks, with the answers that have arrived so far."""

    def __init__(self, ranks: Ranks, size: int):
        self.ranks, self.size = ranks, size
        self.answers: dict[int, tuple[str, Any]] = {}

    def collect(self, timeout: float | None) -> list:
        """All results. Raises RankError for the first error, and RanksHang after `timeout` (s)."""
        until = None if timeout is None else time.monotonic() + timeout
        while len(self.answers) < self.size:
            if not self.hear(None if until is None else until - time.monotonic()):
                done = [*self.answers]
                self.stop()
                stacks = [self.stack(rank) for rank in range(self.size)]
                where = where_ranks_stand(stacks, done)
                raise RanksHang(f"{self.size} ranks, not done after {timeout:g} s:\n{where}")
            for rank, (kind, value) in self.answers.items():
                if kind == "error":
                    raise error_of(rank, value)
        return [self.answers[rank][1] for rank in range(self.size)]

    def hear(self, seconds: float | None) -> bool:
        """Handle one message from a rank; returns False if none arrives within `seconds`."""
        said = self.ranks.next(seconds)
        if said is None:
            return False
        rank, (kind, *what) = said
        if kind == "print":
            show(rank, *what)
        elif kind != "ready":
            self.answers[rank] = (kind, *what)
        return True

    def stop(self) -> None:
        """Stop the ranks that haven't answered; replace a rank that doesn't react."""
        self.ranks.mail.stop([rank for rank in range(self.size) if rank not in self.answers])
        until = time.monotonic() + TO_STOP
        while len(self.answers) < self.size and self.hear(until - time.monotonic()):
            pass
        deaf = [rank for rank in range(self.size) if rank not in self.answers]
        self.ranks.ready -= {*deaf}
        if deaf:
            self.ranks.mail.replace(deaf)

    def end(self) -> None:
        """Make sure that no rank continues to work on this call, even after an error."""
        if len(self.answers) < self.size:
            self.stop()

    def stack(self, rank: int) -> str:
        kind, value = self.answers.get(rank, ("", ""))
        return value if kind == "stopped" else ""


def error_of(rank: int, told: dict[str, Any]) -> RankError:
    """A rank's error for the caller, with the lines on which it was raised."""
    where = "".join(f"\n  {show_line(*frame)}" for frame in told["frames"])
    return RankError(rank, told["what"] + where)


def show(rank: int, lines: list[str]) -> None:
    """Print lines of a rank, each with the rank's number."""
    for line in lines:
        print(f"[rank {rank}] {line}")


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A call as bytes, code included. Raises TypeError for wrong or unpicklable arguments."""
    try:
        inspect.signature(fn).bind("group", *args)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(f"{name} is called as fn(group, *args): {error}") from None
    try:
        return cloudpickle.dumps((fn, args))
    except Exception as error:
        raise TypeError(f"this call cannot be sent to the ranks: {error}") from None


def check(ranks: int, device: str, timeout: float | None) -> None:
    """Raise ValueError for arguments that a tab doesn't support."""
    if type(ranks) is not int or ranks < 1:
        raise ValueError(f"ranks={ranks!r}: a world has 1 rank or more")
    if ranks > MOST:
        raise ValueError(f"ranks={ranks}: a tab carries {MOST} at most; run `make serve` for more")
    if device not in ("auto", "cpu"):
        raise ValueError(f"device={device!r}: a tab has no GPU; choose 'auto' or 'cpu'")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give more than 0 seconds, or None to wait")


here: Any = None  # the `Ranks` of this tab, set by `kernel.start`


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    device: str = "auto",
    threads: int | None = None,
    timeout: float | None = 60.0,
) -> list[Any]:
    """Call `fn(group, *args)` in each of `ranks` workers; return the results in rank order."""
    with world(ranks, device, threads) as run:
        return run(fn, *args, timeout=timeout)


@contextlib.contextmanager
def world(ranks: int = 4, device: str = "auto", threads: int | None = None) -> Iterator[Any]:
    """Make many calls: `with world(4) as run: run(fn, 1); run(fn, 2)`."""
    check(ranks, device, None)
    print(f"{ranks} rank{'s' * (ranks > 1)} · {here.mail.kind}")

    def run(fn: Callable[..., Any], *args: Any, timeout: float | None = 60.0) -> list[Any]:
        check(ranks, device, timeout)
        return here.call(fn, args, ranks, timeout)

    yield run
