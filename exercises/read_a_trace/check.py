"""Find the rank that all others wait for, in the traces of a step, and what is really sent."""

import math
from collections.abc import Callable
from typing import Any

from distributed.runtime.trace import Span, Trace
from playground.exercises.check import Draw, Wrong

HINTS = [
    "A rank with a long all-reduce is not slow. It was early, and waits. Which rank is never seen "
    "waiting?",
    "Take the first all-reduce of all ranks together: zip(*calls), where calls[r] are the "
    "communication spans of rank r. The rank with the largest start is the one that came last.",
    "An all-reduce for which a rank came last by 3 s on four ranks costs the three others what "
    "*they* waited: the sum of last − start. Add it to that rank's account.",
    "Bytes can move from the last start to the first end. Waiting is what lies before that.",
]


def draw_step(draw: Draw, ranks: int, slow: int, calls: int) -> list[Trace]:
    """Every rank computes and calls, `calls` times; rank `slow` mostly takes the longest."""
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    now = [float(draw(0, 3)) for _ in range(ranks)]
    for call in range(calls):
        for rank in range(ranks):
            often = rank == slow and call != 1
            seconds = draw(14, 20) if often else draw(4, 9)
            if rank != slow and call == 1 and rank == (slow + 1) % ranks:
                seconds = draw(20, 24)  # another one is late once, but not for as long
            spans[rank].append(Span("backward", "compute", now[rank], now[rank] + seconds))
            now[rank] += seconds
        starts, seconds = list(now), draw(2, 5)
        for rank in range(ranks):
            now[rank] = max(starts) + seconds + draw(0, 1)
            name = "all_reduce avg"
            spans[rank].append(Span(name, "communication", starts[rank], now[rank]))
    return [Trace(rank, of_rank) for rank, of_rank in enumerate(spans)]


def calls_of(traces: list[Trace]) -> list[list[Span]]:
    return [[s for s in trace.spans if s.kind == "communication"] for trace in traces]


def right(traces: list[Trace]) -> tuple[int, float, float]:
    caused, sending = [0.0] * len(traces), 0.0
    for spans in zip(*calls_of(traces), strict=True):
        last = max(span.start for span in spans)
        (rank,) = [r for r, span in enumerate(spans) if span.start == last][:1]
        caused[rank] += sum(last - span.start for span in spans)
        sending += min(span.end for span in spans) - last
    return caused.index(max(caused)), sum(caused), sending


def told(traces: list[Trace]) -> str:
    lines = [
        f"  rank {trace.rank}: all-reduces "
        + ", ".join(f"{s.start:g}–{s.end:g}" for s in trace.spans if s.kind == "communication")
        for trace in traces
    ]
    return "\n".join(lines)


def check(read: Callable[..., Any], *, draw: Draw) -> str:
    for case in range(12):
        ranks, calls = draw(3, 5), 1 if case == 0 else draw(3, 5)
        traces = draw_step(draw, ranks, draw(0, ranks - 1), calls)
        late, waited, sending = right(traces)
        answer = read(traces)
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise Wrong(f"read(traces) returns {answer!r}: return (late, waited, sending)")
        where = f"A step with these all-reduces:\n{told(traces)}\n"
        if answer[0] != late:
            raise Wrong(f"{where}{blamed(traces, answer[0], late)}")
        for name, found, wanted in (("waited", answer[1], waited), ("sending", answer[2], sending)):
            if not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9):
                raise Wrong(
                    f"{where}{name} is {wanted:g} s, and not {found:g}{guess(traces, found)}"
                )
    return "Right: the late rank is the one with the shortest all-reduces, and all others pay."


def blamed(traces: list[Trace], found: Any, late: int) -> str:
    lengths = [sum(s.seconds for s in spans) for spans in calls_of(traces)]
    said = f"late is rank {late}, and not {found}"
    if found == lengths.index(max(lengths)):
        return f"{said}. Rank {found} spends the longest in all-reduces: it was early, and waits"
    first = [spans[0].start for spans in calls_of(traces)]
    if found == first.index(max(first)):
        return f"{said}. Rank {found} is late in the first all-reduce; look at all of them"
    return f"{said}: add up, for each rank, how long others waited where it came last"


def guess(traces: list[Trace], found: float) -> str:
    calls = calls_of(traces)
    every = sum(s.seconds for spans in calls for s in spans)
    together = list(zip(*calls, strict=True))
    mistakes = {
        "all that ranks spend in all-reduces, the sending included": every,
        "one rank's time in all-reduces, its waiting included": sum(s.seconds for s in calls[0]),
        "from the last call to the *last* end": sum(
            max(s.end for s in spans) - max(s.start for s in spans) for spans in together
        ),
        "what one rank waited in each all-reduce; all others waited, too": sum(
            max(s.start for s in spans) - min(s.start for s in spans) for spans in together
        ),
    }
    for mistake, value in mistakes.items():
        if math.isclose(found, value, rel_tol=1e-9):
            return f": that is {mistake}"
    return ""
