"""A rank in a worker of its own: it answers calls, one after the other, until the tab ends it.

`mail` is the worker's side of `tab-mailboxes.js`. Each call ends with one answer: ("result",
value), ("error", what and where), or ("stopped", where), when the caller said that it is over.
"""

import io
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from distributed.runtime.report import describe, is_machinery
from playground.tab.group import Group

LIMIT = 100_000  # characters that a rank may print in a call


class Ended(KeyboardInterrupt):
    """The caller waits no longer."""


class Mail:
    """Messages of one rank: the carrier of its group, and its line to the caller."""

    def __init__(self, mail: Any):
        self.mail = mail

    def send(self, to: int, data: memoryview) -> None:
        self._check(self.mail.send(to, data), to, data)

    def receive(self, source: int, into: memoryview) -> None:
        self._check(self.mail.receive(source, into), source, into)

    def exchange(self, to: int, data: memoryview, source: int, into: memoryview) -> None:
        self._check(self.mail.exchange(to, data, source, into), source, into)

    def tell(self, *what: Any) -> None:
        """To the caller, as bytes."""
        self.mail.tell(cloudpickle.dumps(what))

    def next_call(self) -> bytes:
        """Wait for what the caller says."""
        return self.mail.hear().to_bytes()

    def _check(self, outcome: int, peer: int, data: memoryview) -> None:
        if outcome == -1:
            raise Ended
        if outcome >= 0:
            raise ValueError(
                f"rank {peer} sent {outcome} bytes, and this rank receives {data.nbytes}"
            )


class Printed(io.TextIOBase):
    """What a rank prints in a call, given to `show` in whole lines until it is too much."""

    def __init__(self, show: Callable[[list[str]], None]):
        self.show = show
        self.rest = ""
        self.size = self.hidden = 0

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        self.size += len(text)
        if self.size > LIMIT:
            self.hidden += len(lines)
        elif lines:
            self.show(lines)
        return len(text)

    def end(self) -> None:
        """Show what stands in a line without an end, and say how much was not shown."""
        if self.rest and not self.hidden:
            self.show([self.rest])
        if self.hidden:
            self.show([f"… and {self.hidden:,} more lines"])
        self.rest = ""


def serve(mail: Any, rank: int, number: int) -> None:
    """Answer calls for ever. `number` is the worker's own, as that of a process."""
    random.seed()  # this Python began as a copy
    os.getpid = lambda: number
    me = Mail(mail)
    me.tell("ready")
    while True:
        answer(me, rank, me.next_call())


def answer(me: Mail, rank: int, call: bytes) -> None:
    """Make one call and tell how it went."""
    printed = Printed(lambda lines: me.tell("print", lines))
    kept = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = printed
    me.mail.interruptible(True)
    try:
        reply = outcome(me, rank, call)
    finally:
        me.mail.interruptible(False)
        sys.stdout, sys.stderr = kept
    printed.end()
    try:
        me.tell(*reply)
    except Exception as error:
        me.tell("error", {"what": f"returned what cannot be sent: {error}", "frames": []})


def outcome(me: Mail, rank: int, call: bytes) -> tuple[str, Any]:
    """What became of a call."""
    try:
        size, packed = pickle.loads(call)
        fn, args = pickle.loads(packed)
        return "result", fn(Group(rank, size, me), *args)
    except KeyboardInterrupt as stop:
        return "stopped", stack_of(stop)
    except BaseException as error:
        return "error", as_told(error)


def as_told(error: BaseException) -> dict[str, Any]:
    """What the caller is told of an error that a rank raised."""
    described = describe(error)
    return described | {"what": f"raised {described['what']}"}


def stack_of(error: BaseException) -> str:
    """Where it was raised, as Python dumps stacks: the innermost frame first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [is_machinery(frame.filename) for frame in frames]
    first = ours.index(False) if False in ours else 0  # the reader's function begins here
    call = ours.index(True, first) if True in ours[first:] else len(frames)
    stack = frames[first : call + 1]  # what our own functions do is no news: which one, is
    lines = (f'File "{f.filename}", line {f.lineno} in {f.name}' for f in stack)
    return "\n".join(reversed([*lines]))
