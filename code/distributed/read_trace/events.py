"""Streaming parser for a Chrome trace: yields each event while its bytes arrive.

A trace of a few steps is easily 500 MB of JSON, and the analysis needs little of it. So neither the
text nor the list of events is ever complete in memory: bytes arrive in pieces, plain or gzipped,
and each event is yielded as soon as it is complete.

PyTorch does not escape every name, so a complete file may have events that aren't JSON. They are
left out, and `notes` names the first one.
"""

import codecs
import contextlib
import json
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any

GZIP = b"\x1f\x8b"
BEGIN = re.compile(r'"traceEvents"\s*:\s*\[|^\s*\[')
NEXT = re.compile(r'\}\s*,\s*(?=\{\s*")')  # between two events
END = re.compile(r'\}\s*\](?:(?:\s*,\s*"[^{}\[\]]*)?\s*\})?\s*\Z')  # of all events, and of a file
NAME = re.compile(r'"name"\s*:\s*(.{1,60})')
FIELD = re.compile(r',\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s)":')
HEADER = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")  # the needed fields
NOT_JSON = (ValueError, StopIteration, RecursionError)  # what the scanner raises
BETWEEN = re.compile(r"[\s,]*")
LONGEST = 16_000_000  # characters before the first event, or in one event; a trace never has more
PIECE = 1 << 22  # bytes to decompress, and characters to read, at a time
Event = dict[str, Any]


class TraceError(ValueError):
    """A file that can't be read as a trace; the message is one line that says why."""


def integer(value: object, default: int = 0) -> int:
    """An integer from a number, or from decimal or hexadecimal text; otherwise `default`."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value, 16 if value.lower().startswith("0x") else 10)
    if isinstance(value, int | float) and math.isfinite(value):
        return int(value)
    return default


def args_of(event: Event) -> dict[str, Any]:
    """The `args` of an event; empty if they aren't an object."""
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def too_large(name: str, most: int) -> TraceError:
    """Error for a file that is too large for a browser's tab, but not for a shell."""
    return TraceError(
        f"{name} has more than {most / 1e6:,.0f} MB of JSON, too much for a tab: "
        "read it in a shell with python -m distributed.read_trace FOLDER"
    )


class Events:
    """Parser with bytes in and events out; `header` has the file's other fields.

    `most` is the maximum size of the JSON (bytes). Raises TraceError, which names the file.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self.name = name
        self.most = most
        self.header: dict[str, Any] = {}
        self.unpacked = 0  # bytes of JSON so far
        self.count = 0  # events so far
        self.damaged = 0  # of these, the events left out because they aren't JSON
        self._first_damaged = ""  # its number and its name
        self._first = b""  # the first two bytes, which show whether it is gzip
        self._gzip: Any = None
        self._text = ""  # what hasn't been read yet
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._scan = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]
        self._stage = "header"  # → "events" → "tail"

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that these bytes complete."""
        if self._gzip is None:
            self._first += data
            if len(self._first) < 2:
                return
            data, self._first = self._first, b""
            self._gzip = zlib.decompressobj(31) if data[:2] == GZIP else False
        for plain in self._unpack(data) if self._gzip else [data]:
            self.unpacked += len(plain)
            if self.most and self.unpacked > self.most:
                raise too_large(self.name, self.most)
            self._text += self._decode(plain)
            if self._stage == "header":
                self._read_header()
            if self._stage == "events":
                yield from self._read_events()

    def close(self) -> None:
        """End of the file. Raises TraceError if it is incomplete or isn't a trace."""
        if self._gzip and not self._gzip.eof:
            raise TraceError(
                f"{self.name} is a gzip file that ends in the middle, after {self.count:,} events: "
                "was the job still writing it?"
            )
        if self._stage == "header":
            raise self._no_trace()
        if self._stage == "events" and (end := END.search(self._text)):
            self._leave_out(self._text[: end.start()])
            return
        if self._stage == "events":
            raise TraceError(
                f"{self.name} ends in the middle of its events, after {self.count:,} of them: "
                "was the job still writing it?"
            )
        with contextlib.suppress(*NOT_JSON):  # a list alone has nothing after it
            self.header |= json.loads("{" + BETWEEN.sub("", self._text, count=1), strict=False)

    @property
    def notes(self) -> list[str]:
        """Remarks about the file for the user."""
        if not self.damaged:
            return []
        many = self.damaged > 1
        return [
            f"{self.damaged:,} event{'s are' if many else ' is'} left out, because "
            f"{'they are' if many else 'it is'} not valid JSON: {'first ' if many else ''}"
            f"{self._first_damaged}. (PyTorch may write inf for a bandwidth, and doesn't escape "
            "quotes and backslashes in the names that with_stack=True records.)"
        ]

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        while data:
            try:
                yield self._gzip.decompress(data, PIECE)
            except zlib.error as error:
                raise TraceError(f"{self.name} is a damaged gzip file ({error})") from None
            data = self._gzip.unconsumed_tail
            if self._gzip.eof and self._gzip.unused_data[:2] == GZIP:  # several in one file
                data = self._gzip.unused_data
                self._gzip = zlib.decompressobj(31)

    def _no_trace(self) -> TraceError:
        if not self.unpacked and not self._first:
            return TraceError(f"{self.name} isn't a trace: it is empty")
        return TraceError(
            f"{self.name} isn't a trace: it has no list of traceEvents, which torch.profiler's "
            "export_chrome_trace writes"
        )

    def _read_header(self) -> None:
        begin = BEGIN.search(self._text)
        start = self._text.lstrip()[:1]
        if start and start not in "{[":
            raise self._no_trace()
        if begin is None:
            if len(self._text) > LONGEST:
                raise self._no_trace()
            return
        before = self._text[: begin.start()]
        try:
            self.header = json.loads(before + '"": []}', strict=False) if before.strip() else {}
        except NOT_JSON:
            self.header = self._fields(before)
        self._text, self._stage = self._text[begin.end() :], "events"

    def _fields(self, text: str) -> dict[str, Any]:
        """The fields that are needed, from a header that isn't JSON."""
        found = {}
        for name in HEADER:
            if begin := re.search(rf'"{name}"\s*:\s*', text):
                with contextlib.suppress(*NOT_JSON):
                    found[name], _ = self._scan(text, begin.end())
        return found

    def _leave_out(self, text: str) -> None:
        """Count the damaged events of a text, and keep the name of the first one of the file."""
        events = NEXT.split(text)
        if not self.damaged:
            named = NAME.search(text)
            name = f", with the name {FIELD.split(named[1])[0].rstrip(', ')}" if named else ""
            self._first_damaged = f"number {self.count + 1:,}{name}"
        self.damaged += len(events)
        self.count += len(events)

    def _after_damage(self, text: str, at: int) -> int:
        """Start of the first whole event after a damaged one; −1 if it hasn't arrived yet."""
        for between in NEXT.finditer(text, at + 1):
            with contextlib.suppress(*NOT_JSON):
                event, _ = self._scan(text, between.end())
                if "ph" in event:
                    self._leave_out(text[at : between.start()])
                    return between.end()
        return -1

    def _read_events(self) -> Iterator[Event]:
        text, at = self._text, 0
        while True:
            at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it may be empty
            if text.startswith("]", at):
                self._stage, at = "tail", at + 1
                break
            try:
                event, at = self._scan(text, at)
            except NOT_JSON:
                if (whole := self._after_damage(text, at)) >= 0:
                    at = whole
                    continue
                if len(text) - at > LONGEST:
                    raise TraceError(
                        f"{self.name} is damaged after {self.count:,} events"
                    ) from None
                break  # the rest of it hasn't arrived yet
            self.count += 1
            if isinstance(event, dict):
                yield event
        self._text = text[at:]
