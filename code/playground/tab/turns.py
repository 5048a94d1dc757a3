"""Ranks that take turns in one Python, for browsers without shared memory and thus without workers.

A rank that has to wait for a message is abandoned, and its function is started again later. In the
new run it receives the same messages from its log, and what it has sent and printed before isn't
sent and printed twice. So it gets back to the same point and beyond, provided that the function
does the same every time it is called.
"""

import pickle
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from distributed.runtime.report import RanksHang, where_ranks_stand
from playground.tab.group import Group
from playground.tab.rank import Printed, as_told, stack_of
from playground.tab.world import error_of, pack_call, show


class Waits(BaseException):
    """This rank has to wait for a message."""


class Turn:
    """One rank of a call: its progress so far, and the transport of its messages."""

    def __init__(self, rank: int, queues: dict[tuple[int, int], deque[bytes]]):
        self.rank, self.queues = rank, queues
        self.log: list[bytes] = []  # every message that it has received
        self.sent = self.shown = 0  # numbers of messages and lines
        self.stack = ""
        self.out = sys.stdout
        self.dice = random.Random().getstate()

    def go(self, call: bytes, size: int) -> tuple[str, Any]:
        """Run until a message is missing; returns "result", "error" or "waits", and the value."""
        self.at_log = self.at_sent = self.at_line = 0
        fn, args = pickle.loads(call)
        random.setstate(self.dice)
        printed = Printed(self.show)
        try:
            with redirect_stdout(printed):
                value = fn(Group(self.rank, size, self), *args)
            printed.end()
            return "result", value
        except Waits as waits:
            self.stack = stack_of(waits)
            return "waits", None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            printed.end()
            return "error", as_told(error)

    def steps(self) -> int:
        """Progress of this rank, as a number that only grows."""
        return len(self.log) + self.sent

    def show(self, lines: list[str]) -> None:
        """Print a rank's lines, except those that an earlier run printed."""
        self.at_line += len(lines)
        new = lines[max(0, len(lines) - (self.at_line - self.shown)) :]
        self.shown = max(self.shown, self.at_line)
        with redirect_stdout(self.out):
            show(self.rank, new)

    def send(self, to: int, data: memoryview) -> None:
        self.at_sent += 1
        if self.at_sent > self.sent:
            self.sent = self.at_sent
            self.queues[self.rank, to].append(data.tobytes())

    def receive(self, source: int, into: memoryview) -> None:
        if self.at_log == len(self.log):
            queue = self.queues[source, self.rank]
            if not queue:
                raise Waits
            self.log.append(queue.popleft())
        message = self.log[self.at_log]
        self.at_log += 1
        if len(message) != into.nbytes:
            raise ValueError(
                f"rank {source} sent {len(message)} bytes, and this rank receives {into.nbytes}"
            )
        into.cast("B")[:] = message

    def exchange(self, to: int, data: memoryview, source: int, into: memoryview) -> None:
        self.send(to, data)
        self.receive(source, into)


class Turns:
    """The ranks of a tab that can't have workers."""

    def __init__(self, mail: Any):
        self.mail = mail

    def call(self, fn: Callable[..., Any], args: tuple, ranks: int, timeout: float | None) -> list:
        """Call `fn(group, *args)` as each of the ranks; returns the results in rank order."""
        call = pack_call(fn, args)
        self.mail.need(ranks)
        until = None if timeout is None else time.monotonic() + timeout
        queues: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        turns = [Turn(rank, queues) for rank in range(ranks)]
        results: dict[int, Any] = {}
        while len(results) < ranks:
            before = sum(turn.steps() for turn in turns), len(results)
            for turn in turns:
                if turn.rank in results:
                    continue
                kind, value = turn.go(call, ranks)
                if kind == "error":
                    raise error_of(turn.rank, value)
                if kind == "result":
                    results[turn.rank] = value
            stands = (sum(turn.steps() for turn in turns), len(results)) == before
            is_late = until is not None and time.monotonic() > until
            if len(results) < ranks and (stands or is_late):
                when = "and none can go on" if stands else f"not done after {timeout:g} s"
                where = where_ranks_stand([turn.stack for turn in turns], results)
                raise RanksHang(f"{ranks} ranks, {when}:\n{where}")
        return [results[rank] for rank in range(ranks)]
