"""Record a step, and find its share of communication: spans that overlap, nest, and wait."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from distributed.ddp import DistributedDataParallel
from distributed.runtime.trace import Span, Trace
from distributed.workbench.training import make_network
from playground.exercises.check import Draw, Wrong, compare, on_ranks
from playground.exercises.watch import watched

HINTS = [
    "Two spans that overlap are no more time than the stretch that they cover. So join them before "
    "you add up.",
    "Sort the communication spans by start. Keep `until`, the latest end so far: a span adds what "
    "it has after that, max(0, end − max(start, until)).",
    "A span inside a longer one must not move `until` back: until = max(until, end). The step "
    "lasts from the first start to the last end of all spans, whatever their kind.",
    "`group.trace = trace = Trace(group.rank)` before the step lets the group record, None after "
    'it ends that. `with trace.span("forward"):` records a block.',
]
LOOK = {  # words of a message → the name in the answer to look at
    "counted more than once": "sum",
    "waiting is counted": "kind",
    "the sum of all spans": "sum",
}
Times = list[tuple[str, float, float]]
CASES: dict[str, Times] = {
    "one after the other": [("compute", 0, 6), ("communication", 6, 8), ("compute", 8, 10)],
    "no communication": [("compute", 0, 6)],
    "communication beside compute": [
        ("communication", 4, 8), ("compute", 0, 10), ("communication", 10, 12),
    ],
    "two all-reduces at once": [
        ("communication", 2, 6), ("communication", 4, 9), ("compute", 0, 10),
    ],
    "a short one within a long one": [
        ("communication", 3, 4), ("communication", 2, 8), ("communication", 5, 9),
        ("compute", 0, 10),
    ],
    "recorded in the order of their ends": [
        ("communication", 7, 8), ("communication", 1, 9), ("compute", 0, 10),
    ],
    "with waiting": [("compute", 0, 5), ("communication", 3, 7), ("waiting", 5, 10)],
    "with a gap": [("compute", 20, 25), ("communication", 24, 30), ("compute", 36, 40)],
}  # fmt: skip


def make(times: Times) -> Trace:
    return Trace(0, [Span(kind, kind, float(start), float(end)) for kind, start, end in times])


def random_times(draw: Draw) -> Times:
    made: Times = []
    for _ in range(12):
        kind, start = ("compute", "communication", "waiting")[draw(0, 2)], draw(0, 99)
        made.append((kind, start, start + draw(1, 20)))
    return made


class Step(NamedTuple):
    """What `record` returns of a step on one rank, and what it leaves behind."""

    trace: Any
    records: bool  # whether the group still records
    calls: int  # all-reduces
    gradient: torch.Tensor
    right: torch.Tensor  # the gradient of a step that isn't recorded


def step(group: Group, record: Callable[..., Any]) -> Step:
    module = make_network(norm=True)
    model = DistributedDataParallel(module, group, bucket_bytes=8_000)
    rows = torch.full((8, 64), 1.0 + group.rank)
    for _ in range(2):  # buckets are rebuilt after the first step
        model.zero_grad()
        model(rows).square().mean().backward()
    right = gradient(module)
    model.zero_grad()
    with watched(group) as events:
        trace = record(group, model, rows)
    records, group.trace = group.trace is not None, None
    calls = sum(event.peer is None for event in events)
    return Step(trace, records, calls, gradient(module), right)


def gradient(module: nn.Module) -> torch.Tensor:
    """All gradients in one array; zeros where there is none."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    return torch.cat([g.flatten() for g in gradients])


def check_step(rank: int, done: Step) -> None:
    """Raise `Wrong` unless the trace has a step's passes, and its messages within the backward."""
    trace = done.trace
    if not isinstance(trace, Trace):
        raise Wrong(f"record(...) returns {type(trace).__name__}: return the Trace")
    where = (
        "A step runs model(x).square().mean() and its backward pass once. "
        f"After record(...) on rank {rank}, the "
    )
    compare("gradient", done.gradient, done.right, 1e-4, where)
    said = f"The trace that rank {rank} recorded "
    if trace.rank != rank:
        raise Wrong(f"{said}says that it is of rank {trace.rank}")
    found = {name: [s for s in trace.spans if s.name == name] for name in ("forward", "backward")}
    for name, spans in found.items():
        if len(spans) != 1 or spans[0].kind != "compute":
            raise Wrong(
                f"{said}has {len(spans)} spans {name!r}, and a step has one: "
                f"`with trace.span({name!r}):`"
            )
    spans = [s for s in trace.spans if s.kind == "communication"]
    if not spans:
        raise Wrong(
            f"{said}has no communication, and the step had {done.calls} all-reduces: the group "
            "records into `group.trace`, if that is set before the step"
        )
    if len(spans) != done.calls:
        raise Wrong(f"{said}has {len(spans)} communication spans, and the step {done.calls}")
    backward = found["backward"][0]
    if any(not backward.start <= s.start <= s.end <= backward.end for s in spans):
        raise Wrong(f"{said}has all-reduces outside of the span 'backward', which starts them all")
    if done.records:
        raise Wrong(
            "After record(...) the group still records: set group.trace to None, or what comes "
            "after the step is in the trace, too"
        )


def union(spans: list[Span]) -> float:
    """Time in which at least one is open: cut time at all ends, and look at each piece."""
    cuts = sorted({t for s in spans for t in (s.start, s.end)})
    return sum(b - a for a, b in pairwise(cuts) if any(s.start <= a and b <= s.end for s in spans))


def check(
    communication_ratio: Callable[[Trace], Any], record: Callable[..., Any], *, draw: Draw
) -> str:
    for said, times in CASES.items():
        check_one(f"{said}: {told(times)}: ", make(times), communication_ratio)
    results = on_ranks(step, record, ranks=2)
    for rank, found in enumerate(results):
        check_step(rank, found)
        where = f"{len(found.trace.spans)} spans of your step, on rank {rank}: "
        check_one(where, found.trace, communication_ratio)
    for _ in range(20):
        times = random_times(draw)
        check_one(f"twelve spans: {told(times)}: ", make(times), communication_ratio)
    share = communication_ratio(results[0].trace)
    return f"Right. Of the step that you recorded on rank 0, {share:.0%} was communication."


def told(times: Times) -> str:
    return ", ".join(f"{kind} {start:g}–{end:g}" for kind, start, end in times)


def check_one(said: str, trace: Trace, answer: Callable[[Trace], Any]) -> None:
    spans = trace.spans
    communication = [s for s in spans if s.kind == "communication"]
    try:
        found = answer(trace)
    except (ValueError, ZeroDivisionError) as error:
        if communication:
            raise
        raise Wrong(
            f"{said}{type(error).__name__}: {error}. A step without communication has the share 0"
        ) from None
    if found is None:
        raise Wrong("the function returns nothing (None)")
    lasts = max(s.end for s in spans) - min(s.start for s in spans)
    right = union(communication) / lasts
    if math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-12):
        return
    said = f"{said}the share is {right:.4g}, and not {found:.4g}: "
    for mistake, wrong in typical_mistakes(spans, communication, lasts).items():
        if math.isclose(found, wrong, rel_tol=1e-9, abs_tol=1e-12):
            raise Wrong(said + mistake)
    raise Wrong(f"{said}communication is {union(communication):g} s of a step of {lasts:g} s")


def typical_mistakes(
    spans: list[Span], communication: list[Span], lasts: float
) -> dict[str, float]:
    """What typical mistakes give, by what there is to say about them."""
    compute = [s for s in spans if s.kind == "compute"]
    busy = [s for s in spans if s.kind != "waiting"]
    waiting = [s for s in spans if s.kind != "compute"]
    time, every = union(communication), sum(s.seconds for s in spans)
    return {
        "spans that overlap are counted more than once": (
            sum(s.seconds for s in communication) / lasts
        ),
        "these are seconds, and not a share of the step": time,
        "waiting is counted too, and it is no communication": union(waiting) / lasts,
        "the step is taken as the sum of all spans, and not from the first start to the last end": (
            time / every
        ),
        "the step is taken as compute plus communication, but they overlap, and there are gaps": (
            time / (union(compute) + time)
        ),
        "the step is taken as the time in which anything is busy: waiting and gaps belong to it": (
            time / union(busy)
        ),
        "only what compute does not hide is counted; asked is all communication": (
            (union(busy) - union(compute)) / lasts
        ),
        "from the first to the last communication is not all communication: there are gaps": (
            max((s.end for s in communication), default=0.0)
            - min((s.start for s in communication), default=0.0)
        )
        / lasts,
        "spans are taken in the order in which they ended: sort by start": (
            until_moves(communication) / lasts
        ),
        "a short span within a long one moves the end back: keep the latest end so far": (
            until_moves(sorted(communication, key=lambda s: s.start), back=True) / lasts
        ),
    }


def until_moves(spans: list[Span], back: bool = False) -> float:
    """Add up what each span has after the end of those before; or only of the one before."""
    total, until = 0.0, -math.inf
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = span.end if back else max(until, span.end)
    return total
