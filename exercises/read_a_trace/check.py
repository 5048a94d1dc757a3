"""Find the rank that the others wait for in a step's traces, and the time that sending takes."""

import math
from collections.abc import Callable
from typing import Any

from distributed.runtime.trace import Span, Trace
from playground.exercises.check import Draw, Wrong

HINTS = [
    "A rank with a long all-reduce isn't slow. It got there early and is waiting. Which rank "
    "waits least?",
    "Look at each all-reduce on all ranks together: zip(*calls), where calls[r] are the "
    "communication spans of rank r. The rank with the largest start called it last.",
    "The rank that called last makes each other rank wait for last − start. Add up these times for "
    "each all-reduce, and count the sum against the rank that called last.",
    "Bytes can move from the last start to the first end. Before that, ranks wait.",
]


def draw_step(draw: Draw, ranks: int, slow: int, calls: int) -> list[Trace]:
    """Each rank computes and calls an all-reduce, `calls` times; rank `slow` is usually slowest."""
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    now = [float(draw(0, 3)) for _ in range(ranks)]
    for call in range(calls):
        for rank in range(ranks):
            often = rank == slow and call != 1
            seconds = draw(14, 20) if often else draw(4, 9)
            if rank != slow and call == 1 and rank == (slow + 1) % ranks:
                seconds = draw(20, 24)  # a different rank is late once, but not for as long
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


def where(traces: list[Trace]) -> str:
    lines = [
        f"  rank {trace.rank}: all-reduces "
        + ", ".join(f"{s.start:g}–{s.end:g}" for s in trace.spans if s.kind == "communication")
        for trace in traces
    ]
    return "\n".join(["A step with these all-reduces:", *lines, ""])


def check(read: Callable[..., Any], *, draw: Draw) -> str:
    steps, answers = [], []
    for case in range(12):
        ranks, calls = draw(3, 5), 1 if case == 0 else draw(3, 5)
        steps.append(draw_step(draw, ranks, draw(0, ranks - 1), calls))
        answers.append(read(steps[-1]))
        if not isinstance(answers[-1], tuple | list) or len(answers[-1]) != 3:
            raise Wrong(f"read(traces) returns {answers[-1]!r}: return (late, waited, sending)")
    for field, name in ((1, "waited"), (2, "sending")):
        for traces, answer in zip(steps, answers, strict=True):
            found, wanted = answer[field], right(traces)[field]
            if not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9):
                why = guess(steps, [answer[field] for answer in answers])
                raise Wrong(f"{where(traces)}{name} is {wanted:g} s, not {found:g}{why}")
    for traces, (found, *_) in zip(steps, answers, strict=True):
        late = right(traces)[0]
        if found != late:
            raise Wrong(f"{where(traces)}{blamed(traces, found, late)}")
    return "Right: the late rank waits least, and all other ranks wait for it."


def blamed(traces: list[Trace], found: Any, late: int) -> str:
    lengths = [sum(s.seconds for s in spans) for spans in calls_of(traces)]
    said = f"the late rank is {late}, not {found}"
    if found == lengths.index(max(lengths)):
        return f"{said}. Rank {found} spends the most time in all-reduces: it was early, and waits"
    return f"{said}: for each rank, add up how long the others waited when it called last"


def mistaken(traces: list[Trace]) -> dict[str, float]:
    calls = calls_of(traces)
    together = list(zip(*calls, strict=True))
    return {
        "the ranks' whole time in all-reduces, including the sending": sum(
            s.seconds for spans in calls for s in spans
        ),
        "the waiting in the first all-reduce only; add up all of them": sum(
            max(s.start for s in together[0]) - s.start for s in together[0]
        ),
        "one rank's time in all-reduces, including its waiting": sum(s.seconds for s in calls[0]),
        "the time from the last call to the *last* end": sum(
            max(s.end for s in spans) - max(s.start for s in spans) for spans in together
        ),
        "the waiting of one rank per all-reduce; the others waited, too": sum(
            max(s.start for s in spans) - min(s.start for s in spans) for spans in together
        ),
    }


def guess(steps: list[list[Trace]], found: list[float]) -> str:
    """The mistake that explains the answers to all cases. For one case, several may do so."""
    cases = [mistaken(traces) for traces in steps]
    for mistake in cases[0]:
        if all(
            math.isclose(f, case[mistake], rel_tol=1e-9)
            for f, case in zip(found, cases, strict=True)
        ):
            return f": that is {mistake}"
    return ""
