"""Trace of a rank: counts what it sends, and times what it does.

A `Trace` belongs to one rank. Spans of computation and of communication are recorded on the clock
that all processes of a machine share, and bytes are counted where they are handed over, never
computed from a formula: the formulas of later chapters are compared with this counter.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Span:
    """One activity of a rank, from `start` to `end` (s, on the machine's monotonic clock)."""

    name: str
    kind: str  # "compute", "communication" or "waiting"
    start: float
    end: float = 0.0
    sent: int = 0  # bytes
    received: int = 0  # bytes
    messages: int = 0  # how many were sent

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Trace:
    """What one rank did, sent and received.

    `sent`, `received` (bytes) and `messages` count point-to-point messages as they are handed to
    the transport. A collective of the backend moves its bytes where Python can't count them, so
    its span has none, and `handed_over` (bytes) is the size of the arrays that it was given.
    """

    rank: int
    spans: list[Span] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    messages: int = 0
    handed_over: int = 0

    @contextmanager
    def span(self, name: str, kind: str = "compute") -> Iterator[Span]:
        """Record the time of the block, and the bytes that are sent and received in it."""
        span = self.begin(name, kind)
        try:
            yield span
        finally:
            self.end(span)

    def begin(self, name: str, kind: str) -> Span:
        """A span that `end` will close: for work that another thread completes."""
        counts = {"sent": -self.sent, "received": -self.received, "messages": -self.messages}
        return Span(name, kind, start=time.perf_counter(), **counts)

    def end(self, span: Span) -> None:
        """Close a span and record it."""
        span.end = time.perf_counter()
        span.sent += self.sent
        span.received += self.received
        span.messages += self.messages
        self.spans.append(span)

    def count_sent(self, size: int) -> None:
        """Count one message of `size` bytes that was sent."""
        self.sent += size
        self.messages += 1

    def count_received(self, size: int) -> None:
        """Count `size` bytes that have arrived."""
        self.received += size

    def seconds(self, kind: str) -> float:
        """Time in which at least one span of this kind was open (s); overlaps count once."""
        total, until = 0.0, float("-inf")
        for span in sorted((s for s in self.spans if s.kind == kind), key=lambda s: s.start):
            total += max(0.0, span.end - max(span.start, until))
            until = max(until, span.end)
        return total


def overlap(trace: Trace) -> float:
    """Time in which the rank computed *and* communicated (s)."""
    busy = [span for span in trace.spans if span.kind != "waiting"]
    both = Trace(trace.rank, [Span(s.name, "any", s.start, s.end) for s in busy])
    return trace.seconds("compute") + trace.seconds("communication") - both.seconds("any")


def overlapped(ready: Sequence[float], messages: Sequence[float], computed: float) -> float:
    """End of a step (s) in which message i leaves when it is ready and i − 1 has been sent."""
    end = 0.0
    for at, seconds in zip(ready, messages, strict=True):
        end = max(end, at) + seconds
    return max(end, computed)


def chrome_trace(traces: Iterable[Trace]) -> dict[str, Any]:
    """All ranks' spans in Chrome's trace format, times in µs: for Perfetto or chrome://tracing."""
    traces = list(traces)
    first = min((span.start for trace in traces for span in trace.spans), default=0.0)
    events: list[dict[str, Any]] = []
    for trace in traces:
        named = {"name": f"rank {trace.rank}"}
        events.append({"ph": "M", "name": "process_name", "pid": trace.rank, "args": named})
        for span in trace.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "pid": trace.rank,
                    "tid": {"compute": 0, "communication": 1, "waiting": 2}[span.kind],
                    "ts": (span.start - first) * 1e6,
                    "dur": span.seconds * 1e6,
                    "args": {"sent": span.sent, "received": span.received},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_chrome_trace(traces: Iterable[Trace], path: str | Path) -> None:
    """Write `chrome_trace(traces)` to a file that Perfetto opens."""
    Path(path).write_text(json.dumps(chrome_trace(traces)))


def main() -> None:
    """Trace two pieces of work that overlap, and add them up."""
    trace = Trace(rank=0)
    with trace.span("backward"):
        time.sleep(0.02)
        with trace.span("all_reduce", "communication"):
            trace.count_sent(4_000)
            time.sleep(0.01)
    for span in trace.spans:
        print(f"{span.kind:13} {span.name:10} {span.seconds * 1e3:5.1f} ms  {span.sent} bytes sent")
    inner, outer = trace.spans
    assert outer.start < inner.start < inner.end < outer.end
    assert abs(overlap(trace) - inner.seconds) < 1e-6


if __name__ == "__main__":
    main()
