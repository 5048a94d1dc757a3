"""Rank in a Web Worker: answers one call after another until the tab ends the worker.

`mail` is the worker's side of `tab-mailboxes.js`. Each call has one answer: ("result", value);
("error", message and lines); or ("stopped", stack), if the caller stopped the call.
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

LIMIT = 100_000  # characters of a rank that are shown per call
FLOOD = 1_000_000  # characters; a rank that prints more is stopped


class Ended(KeyboardInterrupt):
    """The caller no longer waits for this call."""


class Mail:
    """Messages of one rank: it carries those of the rank's group and reports to the caller."""

    def __init__(self, mail: Any):
        self.mail = mail

    def send(self, to: int, data: memoryview) -> None:
        self._check(self.mail.send(to, data), to, data)

    def receive(self, source: int, into: memoryview) -> None:
        self._check(self.mail.receive(source, into), source, into)

    def exchange(self, to: int, data: memoryview, source: int, into: memoryview) -> None:
        self._check(self.mail.exchange(to, data, source, into), source, into)

    def tell(self, *what: Any) -> None:
        """Send a report to the caller, as bytes."""
        self.mail.tell(cloudpickle.dumps(what))

    def next_call(self) -> bytes:
        """Wait for the caller's next call."""
        return self.mail.hear().to_bytes()

    def _check(self, outcome: int, peer: int, data: memoryview) -> None:
        if outcome == -1:
            raise Ended
        if outcome >= 0:
            raise ValueError(
                f"rank {peer} sent {outcome} bytes, and this rank receives {data.nbytes}"
            )


class Printed(io.TextIOBase):
    """Output of a rank during one call: passes whole lines to `show`, up to `LIMIT` characters."""

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
        if self.size > FLOOD:
            self.size = LIMIT  # its error message may be printed
            raise RuntimeError(f"this rank printed more than {FLOOD / 1e6:g} MB")
        return len(text)

    def end(self) -> None:
        """Show an unfinished last line, and say how much output was dropped."""
        if self.rest and not self.hidden:
            self.show([self.rest])
        if self.hidden:
            self.show([f"… and {self.hidden:,} more lines"])
        self.rest = ""


def serve(mail: Any, rank: int, number: int) -> None:
    """Answer calls forever. `number` is the worker's number and serves as its process id."""
    random.seed()  # this Python started as a copy of another, random state included
    os.getpid = lambda: number
    me = Mail(mail)
    me.tell("ready")
    while True:
        answer(me, rank, me.next_call())


def answer(me: Mail, rank: int, call: bytes) -> None:
    """Make one call and report its outcome."""
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
    """Result of a call: "result", "stopped" or "error", with the value, the stack or the error."""
    try:
        size, packed = pickle.loads(call)
        fn, args = pickle.loads(packed)
        return "result", fn(Group(rank, size, me), *args)
    except KeyboardInterrupt as stop:
        return "stopped", stack_of(stop)
    except BaseException as error:
        return "error", as_told(error)


def as_told(error: BaseException) -> dict[str, Any]:
    """An error that a rank raised, in the form that is sent to the caller."""
    described = describe(error)
    return described | {"what": f"raised {described['what']}"}


def stack_of(error: BaseException) -> str:
    """The stack of an error in the format of Python's own dumps: innermost frame first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [is_machinery(frame.filename) for frame in frames]
    first = ours.index(False) if False in ours else 0  # the reader's function begins here
    call = ours.index(True, first) if True in ours[first:] else len(frames)
    stack = frames[first : call + 1]  # of the book's own frames keep only the first, the one called
    lines = (f'File "{f.filename}", line {f.lineno} in {f.name}' for f in stack)
    return "\n".join(reversed([*lines]))
