"""Breakdown of a step's time into four bars that add up to it.

    step = compute + exposed communication + data + gaps

A moment in which a GPU computes always counts as computation. Communication at that moment is
hidden, and the rest of it is exposed. A moment in which nothing runs counts as data if Python is
waiting for the loader, and otherwise as a gap. For a job without a GPU, waiting for the loader
takes precedence, because Python itself computes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from distributed.read_trace.intervals import Stretches, both, length, minus, union, within
from distributed.read_trace.rank_trace import ProfilerStep, RankTrace

SLACK = 30.0  # µs between the end of a synchronization and the gap that it leaves
PAUSE = 5e3  # µs: in a longer gap, Python does something other than launching the next kernel
ODD = 1.3  # a step that takes more than this multiple of the median is reported


class StepTimes(NamedTuple):
    """One step of one rank (µs); `communication` is exposed and hidden together."""

    number: int
    start: float
    end: float
    compute: float
    exposed: float
    data: float
    copies: float  # of the gaps: the GPU copies and does nothing else
    synchronization: float  # of the gaps: after Python has waited for the GPU
    launches: float  # of the gaps: Python was too slow or busy
    communication: float
    asking: float  # of the launches: Python was starting a collective
    pauses: float  # of the other launches: gaps of more than PAUSE

    @property
    def total(self) -> float:
        return self.end - self.start

    @property
    def gaps(self) -> float:
        return self.copies + self.synchronization + self.launches

    @property
    def hidden(self) -> float:
        return self.communication - self.exposed


class Whole(NamedTuple):
    """A trace from its first kernel to its last (µs), as HolisticTraceAnalysis divides it."""

    total: float
    compute: float
    other: float  # communication and copies while nothing computes
    idle: float
    overlap: float  # hidden communication as a share of all communication


def windows(trace: RankTrace) -> list[ProfilerStep]:
    """The steps, without holes between them.

    A GPU lags behind Python. So its step begins when all kernels launched earlier are done, but not
    before Python began the step, because a wait for data at the beginning belongs to it.
    """
    if not trace.steps:
        return [trace.whole]
    if not trace.is_gpu:
        return trace.steps
    asked = sorted((trace.launched.get(k.correlation, k.start), k.end) for k in trace.kernels)
    done, latest = [], 0.0
    for _, end in asked:
        latest = max(latest, end)
        done.append(latest)
    begins = []
    for moment in [*(step.start for step in trace.steps), trace.steps[-1].end]:
        before = bisect_left(asked, (moment, 0.0))
        begins.append(max(moment, done[before - 1] if before else 0.0))
    begins[0] = max(begins[0], begins[0] + lag_of_first(trace))
    pairs = zip(trace.steps, begins, begins[1:], strict=False)
    found = [ProfilerStep(step.number, a, b) for step, a, b in pairs if b > a]
    if not found:
        trace.note("No kernel ran in a step, so the whole trace is read as one step.")
    return found or [trace.whole]


def lag_of_first(trace: RankTrace) -> float:
    """The GPU's lag behind Python (µs) when the trace began; it then ran unrecorded kernels."""
    begin = trace.steps[0].start
    later = (k for k in trace.kernels if trace.launched.get(k.correlation, -1.0) >= begin)
    first = min(later, key=lambda k: trace.launched[k.correlation], default=None)
    return first.start - trace.launched[first.correlation] if first else 0.0


def after_synchronizing(idle: Stretches, synchronizing: Stretches) -> Stretches:
    """The idle stretches that begin while or just after Python waits for the GPU."""
    found, ends = [], [end for _, end in synchronizing]
    for start, end in idle:
        at = bisect_left(ends, start - SLACK)
        if at < len(ends) and synchronizing[at][0] < start + SLACK and ends[at] < end + SLACK:
            found.append((start, end))
    return found


def breakdown(trace: RankTrace) -> list[StepTimes]:
    """The four bars of each step."""
    compute, sent, copies = (trace.busy(kind) for kind in ("compute", "communication", "copy"))
    loading = trace.loading
    if not trace.is_gpu:
        compute = minus(compute, loading)
    exposed = minus(sent, compute)
    busy = union([*compute, *sent])
    copies = minus(copies, busy)
    found = []
    for step in windows(trace):
        a, b = step.start, step.end
        parts = [within(each, a, b) for each in (compute, exposed, copies)]
        idle = minus([(a, b)], union([*parts[0], *parts[1], *parts[2]]))
        data = both(idle, within(loading, a, b))
        idle = minus(idle, data)
        waited = after_synchronizing(idle, trace.synchronizing)
        launches = minus(idle, waited)
        asking = both(launches, within(trace.asking, a, b))
        times = StepTimes(
            *step,
            compute=length(parts[0]),
            exposed=length(parts[1]),
            data=length(data),
            copies=length(parts[2]),
            synchronization=length(waited),
            launches=length(launches),
            communication=length(within(sent, a, b)),
            asking=length(asking),
            pauses=sum(y - x for x, y in minus(launches, asking) if y - x > PAUSE),
        )
        found.append(times)
    return found


def mean_step(steps: Sequence[StepTimes]) -> StepTimes:
    """The mean of each bar; it begins at 0."""
    total = mean(step.total for step in steps)
    bars = [mean(column) for column in zip(*(step[3:] for step in steps), strict=True)]
    return StepTimes(0, 0.0, total, *bars)


def odd_steps(steps: Sequence[StepTimes]) -> list[StepTimes]:
    """The steps that take much longer than the median step."""
    middle = median(step.total for step in steps)
    return [step for step in steps if step.total > ODD * middle]


def whole(trace: RankTrace) -> Whole:
    """Kernels of the whole trace, regardless of steps; only for a GPU."""
    compute, sent = trace.busy("compute"), trace.busy("communication")
    busy = union((k.start, k.end) for k in trace.kernels)
    total = busy[-1][1] - busy[0][0]
    idle = total - length(busy)
    overlap = length(both(sent, compute)) / length(sent) if sent else 0.0
    return Whole(total, length(compute), total - idle - length(compute), idle, overlap)
