"""Verdict on a step: which rules are broken, what each costs at most, and what to change first.

Each rule looks at one of the bars of a step. The cost of a finding is an upper bound: removing the
problem completely would shorten the step by at most that time. The first finding is the largest.
"""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from distributed.read_trace.breakdown import StepTimes, breakdown, mean_step
from distributed.read_trace.families import FUSIBLE
from distributed.read_trace.intervals import length, minus, union, within
from distributed.read_trace.kernels import by_family, in_fp32, model_kind
from distributed.read_trace.messages import Collective, Late, who_comes_last
from distributed.read_trace.rank_trace import WAITING, Kernel, ProfilerStep, RankTrace
from distributed.read_trace.rules import ADVICE, COMPUTE, FAST, RULES

LEAST = 0.05  # of a step; a smaller cost isn't reported
GOOD = 0.6  # of a GPU's peak, which good kernels of a large model reach while they run
MANY = 10  # collectives per step; from here on, one per gradient is a mistake
LARGE = 1_000_000  # bytes; from here on, a collective shows a link's bandwidth
REDUCTIONS = ("all-reduce", "reduce-scatter")
WAY = re.compile(r"(?<=Memcpy )\w+")
HIDING = 2 / 3  # of the computation is the backward pass, behind which gradients can travel


class StepWork(NamedTuple):
    """Work of the user's model, per rank and step."""

    flops: float
    peak: float  # FLOP/s of the GPU's data sheet
    tokens: float = 0.0


class RankSteps(NamedTuple):
    """One rank with its steps, and the mean of them."""

    trace: RankTrace
    steps: list[StepTimes]
    mean: StepTimes

    @property
    def number(self) -> int:
        return len(self.steps)


class Finding(NamedTuple):
    """A broken rule: its cost (µs of a mean step), a sentence, and the page to read."""

    cause: str
    time: float
    said: str
    page: str


def finding(cause: str, time: float, shows: str = "", **facts: object) -> Finding:
    """Finding for a broken rule of RULES; `facts` fill in its first sentence.

    `shows` is a property of the job that the trace shows, and which may have its own advice.
    """
    rule = RULES[cause]
    advice = ADVICE.get((cause, shows), rule.advice)
    return Finding(cause, time, f"{rule.seen.format(**facts)} {advice}", rule.page)


class Verdict(NamedTuple):
    """Result of the analysis of all traces together."""

    ranks: list[RankSteps]
    step: StepTimes  # the mean over the ranks that are not the slow one
    late: Late | None
    findings: list[Finding]  # the most expensive first
    mfu: float  # 0 if the model isn't known
    slow_kernels: float  # µs of the computation beyond what the peak needs; 0 without a model
    notes: list[str]


def of_rank(trace: RankTrace) -> RankSteps:
    steps = breakdown(trace)
    return RankSteps(trace, steps, mean_step(steps))


def judge(traces: Sequence[RankTrace], work: StepWork | None = None) -> Verdict:
    """Verdict on a step from the traces of one or several ranks."""
    ranks = [of_rank(trace) for trace in traces]
    notes = list(dict.fromkeys(note for each in ranks for note in each.trace.notes))
    late = slow_rank(ranks)
    others = [each for each in ranks if late is None or each.trace.rank != late.rank]
    step = mean_step([each.mean for each in others])
    findings = [] if late is None else [check_slow_rank(late, ranks, step)]
    waits = late.waits if late else 0.0
    findings += [
        check_communication(others, step, waits, work),
        finding("loader", step.data, data=ms(step.data)),
        *check_gaps(others, step),
        *check_kernels(others, step, work),
    ]
    findings = sorted(
        (each for each in findings if each.time >= LEAST * step.total), key=lambda f: -f.time
    )
    if not recorded_together(ranks):
        notes.append(
            "The ranks were recorded in different steps, so this can't say which rank the others "
            "wait for."
        )
    said = max((each.trace.ranks for each in ranks), default=0)
    if said > len(ranks) and any(each.trace.collectives for each in ranks):
        count = "One rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
        notes.append(
            f"{count} of {said}: only the traces of all ranks show which rank the others wait for."
        )
    mfu = work.flops / work.peak / (step.total / 1e6) if work else 0.0
    slow = max(0.0, step.compute - 1e6 * work.flops / work.peak) if work else 0.0
    return Verdict(ranks, step, late, findings, mfu, slow, notes)


# --- one rule each


def slow_rank(ranks: Sequence[RankSteps]) -> Late | None:
    """The rank that the others wait for, if that costs enough to be reported."""
    if not recorded_together(ranks):
        return None
    late = who_comes_last(
        {each.trace.rank: [step.communication for step in each.steps] for each in ranks}
    )
    total = mean(each.mean.total for each in ranks)
    return late if late and late.waits >= LEAST * total else None


def check_slow_rank(late: Late, ranks: Sequence[RankSteps], others: StepTimes) -> Finding:
    own = next(each.mean for each in ranks if each.trace.rank == late.rank)
    excess = {
        "It computes {} longer per step.": own.compute - others.compute,
        "It waits {} longer per step for its data.": own.data - others.data,
        "It's idle for {} more per step, while Python is busy elsewhere.": own.gaps - others.gaps,
    }
    reason = max(excess, key=lambda each: excess[each])
    why = f" {reason.format(ms(excess[reason]))}" if excess[reason] > 0 else ""
    return finding(
        "slow rank", min(late.waits, others.exposed),
        rank=late.rank, own=ms(late.own), others=ms(late.others), why=why,
    )  # fmt: skip


def check_communication(
    ranks: Sequence[RankSteps], step: StepTimes, waits: float, work: StepWork | None
) -> Finding:
    """Exposed communication, without waits for a slow rank, and why it wasn't hidden."""
    exposed = max(0.0, step.exposed - waits)
    sent = max(0.0, step.communication - waits)
    one = min(ranks, key=lambda each: each.mean.communication)
    number = len(inside(one)) / one.number
    gradients = len([g for g in one.trace.gradients if is_inside(g, one)]) / one.number
    scatters = any(c.kind == "reduce-scatter" for c in inside(one))
    shows = "sharded" if one.trace.sharded or scatters else ""
    early, reductions = before_backward(one)
    if early >= MANY and early >= 0.25 * reductions:
        return finding("activations in the way", exposed, early=early, number=reductions)
    if number >= MANY and gradients and number >= 0.8 * gradients:
        time = exposed + step.asking
        return finding("a message for each tensor", time, shows, number=number, gradients=gradients)
    kind, of_kind = most_exposed(one)
    if kind in ("all-to-all", "send and receive") and of_kind > 0.5 * one.mean.exposed:
        return finding("exchange in the way", exposed, kind=kind)
    if sent > HIDING * step.compute:
        return finding(
            "more messages than computation", exposed, shows,
            sent=ms(sent), backward=ms(HIDING * step.compute), threshold=threshold(one, work),
        )  # fmt: skip
    return finding(
        "messages that leave late", exposed, shows,
        sent=ms(sent), exposed=ms(exposed), done=left_at(one),
    )  # fmt: skip


def check_gaps(ranks: Sequence[RankSteps], step: StepTimes) -> list[Finding]:
    if not ranks[0].trace.is_gpu:
        return [finding("gaps", step.launches, gaps=ms(step.launches))]
    number = sum(each.number for each in ranks)
    names = [name for r in ranks for start, _, name in r.trace.waiting if is_inside(start, r)]
    most = max(WAITING, key=names.count) if names else ""
    often = "once" if names.count(most) == number else f"{names.count(most) / number:.3g} times"
    calls = f" ({most}, {often} in a step)" if names else ""
    kernels = sum(len(kernels_inside(each)) for each in ranks) / number
    model = model_kind(kernels_inside(ranks[0]))
    slow = step.launches - step.asking - step.pauses
    waited = step.synchronization
    return [
        finding("synchronization", waited, gaps=ms(waited), calls=calls),
        finding("Python is too slow", slow, model, gaps=ms(slow), kernels=kernels),
        finding("pauses", step.pauses, gaps=ms(step.pauses)),
        finding("copies", step.copies, most_copied(ranks[0]), copies=ms(step.copies)),
    ]


def check_kernels(
    ranks: Sequence[RankSteps], step: StepTimes, work: StepWork | None
) -> list[Finding]:
    if not ranks[0].trace.is_gpu:
        return []
    kernels = kernels_inside(ranks[0])
    families = {share.name: share.time for share in by_family(kernels)}
    together = sum(families.values()) or 1.0
    other = sum(families.get(name, 0.0) for name in FUSIBLE) / together
    fp32 = in_fp32(kernels) / together
    hints = []
    if fp32 > 0.2:
        on = "fp32 on V100" if "v100" in ranks[0].trace.device.lower() else "fp32"
        hints.append(COMPUTE[on].format(share=fp32))
    if other > 0.3:
        hints.append(COMPUTE["fusible"].format(share=other))
    hint = f" Of its time {'; '.join(hints)}." if hints else ""
    page = "book/training_well/precision" if fp32 > max(0.2, other) else FAST
    if work is not None:
        slow = step.compute - 1e6 * work.flops / (GOOD * work.peak)
        rate = 1e6 * work.flops / work.peak / step.compute if step.compute else 0.0
        said = f"While it computes, the GPU reaches {rate:.0%} of its peak; {GOOD:.0%} is typical."
        return [Finding("slow kernels", slow, f"{said}{hint}", page)]
    if not hints:
        return []
    lost = max(fp32 * 0.5, other - 0.3)  # tensor cores at least halve it
    return [Finding("slow kernels", lost * step.compute, f"Kernels are slow.{hint}", page)]


# --- what the rules look at


def is_inside(moment: float, rank: RankSteps) -> bool:
    return rank.steps[0].start <= moment <= rank.steps[-1].end


def recorded_together(ranks: Sequence[RankSteps]) -> bool:
    """Whether all ranks were recorded in the same steps, so that their waiting can be compared."""
    return all(each.trace.numbers == ranks[0].trace.numbers for each in ranks)


def inside(rank: RankSteps) -> list[Collective]:
    """The collectives of the steps, without those before or after them."""
    return [each for each in rank.trace.collectives if is_inside(each.start, rank)]


def kernels_inside(rank: RankSteps) -> list[Kernel]:
    """The kernels and copies of the steps, without those before or after them."""
    return [each for each in rank.trace.kernels if is_inside(each.start, rank)]


def most_copied(rank: RankSteps) -> str:
    """The direction that takes most of the copies' time, such as DtoH; empty if unknown."""
    times: dict[str, float] = defaultdict(float)
    for each in kernels_inside(rank):
        if each.kind == "copy" and (way := WAY.search(each.name)):
            times[way[0]] += each.end - each.start
    return max(times, key=lambda way: times[way], default="")


def most_exposed(rank: RankSteps) -> tuple[str, float]:
    """The kind of collective with the most exposed time, and that time per step (µs)."""
    compute = rank.trace.busy("compute")
    times = defaultdict(list)
    for each in inside(rank):
        times[each.kind].append((each.start, each.end))
    exposed = {kind: length(minus(union(all_), compute)) for kind, all_ in times.items()}
    kind = max(exposed, key=lambda each: exposed[each], default="")
    return kind, exposed.get(kind, 0.0) / rank.number


def before_backward(rank: RankSteps) -> tuple[float, float]:
    """Reductions of a mean step that Python starts before its backward pass, and all of them.

    Without a backward pass, as in an evaluation, all of them come from the forward pass. A
    reduction whose launch wasn't recorded isn't counted.
    """
    trace = rank.trace
    launches = {
        (k.start, k.end): trace.launched[k.correlation]
        for k in trace.kernels
        if k.kind == "communication" and k.correlation in trace.launched
    }
    starts = sorted(
        launches.get(c[:2], c.start)
        for c in trace.collectives
        if c.kind in REDUCTIONS and (c[:2] in launches or not trace.is_gpu)
    )
    early = number = 0
    for step in trace.steps or [ProfilerStep(0, -math.inf, math.inf)]:
        begin, end = bisect_left(starts, step.start), bisect_left(starts, step.end)
        number += end - begin
        at = bisect_left(trace.backward, step.start)
        if trace.is_forward_only:
            early += end - begin
        elif at < len(trace.backward) and trace.backward[at] < step.end:
            early += bisect_left(starts, trace.backward[at]) - begin
    return early / rank.number, number / rank.number


def left_at(rank: RankSteps) -> float:
    """The share of a step's computation that is done when its first gradients are sent."""
    compute, found = rank.trace.busy("compute"), []
    for step in rank.steps:
        starts = [
            c.start
            for c in rank.trace.collectives
            if step.start <= c.start < step.end and c.kind in REDUCTIONS
        ]
        if starts and step.compute:
            found.append(length(within(compute, step.start, min(starts))) / step.compute)
    return mean(found) if found else 0.0


def link(rank: RankSteps) -> float:
    """W: the bandwidth that large collectives reach (bytes/s); 0 if sizes are unknown."""
    return median([c.bandwidth for c in inside(rank) if c.bytes >= LARGE and c.bandwidth] or [0.0])


def threshold(rank: RankSteps, work: StepWork | None) -> str:
    """The book's rule T > gC/2W with measured values, assuming bf16 gradients (g = 2)."""
    w = link(rank)
    if work is None or not work.tokens or not w or not rank.mean.compute:
        return ""
    c = work.flops / (rank.mean.compute / 1e6)
    return (
        f" Each rank has {work.tokens:,.0f} tokens, and gC/2W is {c / w:,.0f} with gradients of "
        f"two bytes (C = {c / 1e12:,.0f} TFLOP/s, W = {w / 1e9:,.1f} GB/s)."
    )


def ms(time: float) -> str:
    """µs as milliseconds, with two or three significant digits."""
    return f"{time / 1e3:.0f} ms" if time >= 99.5e3 else f"{time / 1e3:.2g} ms"
