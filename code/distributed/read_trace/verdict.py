"""Which rule broke, what it costs at most, and the one change to begin with.

Each rule looks at one of the bars of a step. What a finding costs is an upper bound: were nothing
of it left, the step would be shorter by so much. The first finding is the largest.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from distributed.read_trace.breakdown import StepTimes, breakdown, mean_step
from distributed.read_trace.intervals import length, minus, union, within
from distributed.read_trace.kernels import OTHER, by_family, in_fp32
from distributed.read_trace.messages import Collective, Late, who_comes_last
from distributed.read_trace.rank_trace import RankTrace

FAST = "book/at_scale/is_it_fast"
LEAST = 0.05  # of a step: what costs less is not told
GOOD = 0.6  # of a GPU's peak: what well-made kernels of a large model reach while they run
MANY = 10  # collectives in a step, from which on one for each gradient is a mistake
LARGE = 1_000_000  # bytes, from which on a collective shows a link's bandwidth
HIDING = 2 / 3  # of the computation is the backward pass, behind which gradients can travel
PAGES = {  # the pages that explain, with their titles
    "book/ddp/overlap": "Overlap",
    "book/ddp/buckets": "Buckets",
    "book/at_scale/is_it_fast": "Is it fast?",
    "book/at_scale/where_it_ends": "Where data parallelism ends",
    "book/training_well/precision": "Mixed precision",
    "book/training_well/waiting": "Stragglers, asynchronous and local SGD",
}


class StepWork(NamedTuple):
    """What the reader's model has to compute: on one rank, in one step."""

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
    """A rule that broke: µs of a mean step, in a sentence, and the page to read."""

    cause: str
    time: float
    said: str
    page: str


class Verdict(NamedTuple):
    """All that is said of the traces together."""

    ranks: list[RankSteps]
    step: StepTimes  # the mean over the ranks that are not the slow one
    late: Late | None
    findings: list[Finding]  # the dearest first
    mfu: float  # 0 where the model is not known
    slow_kernels: float  # µs of the computation beyond what the peak needs; 0 without a model
    notes: list[str]


def of_rank(trace: RankTrace) -> RankSteps:
    steps = breakdown(trace)
    return RankSteps(trace, steps, mean_step(steps))


def judge(traces: Sequence[RankTrace], work: StepWork | None = None) -> Verdict:
    """What is wrong with a step, of which one rank or several were traced."""
    ranks = [of_rank(trace) for trace in traces]
    notes = list(dict.fromkeys(note for each in ranks for note in each.trace.notes))
    late = slow_rank(ranks)
    others = [each for each in ranks if late is None or each.trace.rank != late.rank]
    step = mean_step([each.mean for each in others])
    findings = [] if late is None else [about_slow_rank(late, ranks, step)]
    waits = late.waits if late else 0.0
    findings += [
        *about_communication(others, step, waits, work),
        *about_data(step),
        *about_gaps(others, step),
        *about_kernels(others, step, work),
    ]
    findings = sorted(
        (each for each in findings if each.time >= LEAST * step.total), key=lambda f: -f.time
    )
    said = max((each.trace.ranks for each in ranks), default=0)
    if said > len(ranks) and any(each.trace.collectives for each in ranks):
        count = "One rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
        notes.append(f"{count} of {said}: whom the others wait for shows only with all traces.")
    mfu = work.flops / work.peak / (step.total / 1e6) if work else 0.0
    slow = max(0.0, step.compute - 1e6 * work.flops / work.peak) if work else 0.0
    return Verdict(ranks, step, late, findings, mfu, slow, notes)


# --- one rule each


def slow_rank(ranks: Sequence[RankSteps]) -> Late | None:
    """The rank that the others wait for, if that costs enough to be told."""
    late = who_comes_last(
        {each.trace.rank: [step.communication for step in each.steps] for each in ranks}
    )
    total = mean(each.mean.total for each in ranks)
    return late if late and late.waits >= LEAST * total else None


def about_slow_rank(late: Late, ranks: Sequence[RankSteps], others: StepTimes) -> Finding:
    own = next(each.mean for each in ranks if each.trace.rank == late.rank)
    excess = {
        "computes longer": own.compute - others.compute,
        "waits for its data": own.data - others.data,
        "has gaps in which Python does something else": own.gaps - others.gaps,
    }
    why = max(excess, key=lambda each: excess[each])
    more = f" It {why}, by {ms(excess[why])} of a step." if excess[why] > 0 else ""
    return Finding(
        "slow rank",
        min(late.waits, others.exposed),
        f"Rank {late.rank} comes last: it spends {ms(late.own)} of a step in collectives and the "
        f"others {ms(late.others)}, most of that waiting for it.{more} Look at that rank and its "
        "host, and not at the network.",
        FAST,
    )


def about_communication(
    ranks: Sequence[RankSteps], step: StepTimes, waits: float, work: StepWork | None
) -> list[Finding]:
    """What is exposed without waiting for a slow rank, and why it did not hide."""
    exposed = max(0.0, step.exposed - waits)
    sent = max(0.0, step.communication - waits)
    one = min(ranks, key=lambda each: each.mean.communication)
    calls = inside(one)
    number = len(calls) / one.number
    gradients = len([g for g in one.trace.gradients if is_inside(g, one)]) / one.number
    if number >= MANY and gradients and number >= 0.8 * gradients:
        return [
            Finding(
                "a message for each tensor",
                exposed + step.asking,
                f"There are {number:.0f} collectives in a step, and {gradients:.0f} gradients: "
                "each tensor is a message of its own, and pays a latency of its own. Put them into "
                "buckets (DDP's bucket_cap_mb), or wrap blocks and not layers (FSDP).",
                "book/ddp/buckets",
            )
        ]
    kind, of_kind = most_exposed(one)
    if kind in ("all-to-all", "send and receive") and of_kind > 0.5 * one.mean.exposed:
        return [
            Finding(
                "exchange in the way",
                exposed,
                f"Most of the exposed communication is {kind}: an exchange between parts of the "
                "forward and backward pass, which data parallelism has not. Hide it behind the "
                "computation of another batch.",
                "book/at_scale/where_it_ends",
            )
        ]
    if sent > HIDING * step.compute:
        rule = threshold(one, work)
        return [
            Finding(
                "more messages than computation",
                exposed,
                f"{ms(sent)} of communication cannot hide behind a backward pass of about "
                f"{ms(HIDING * step.compute)}.{rule} Give each rank more tokens in a step "
                "(a larger batch, accumulation), send fewer bytes, or use more of the network.",
                "book/ddp/overlap",
            )
        ]
    return [
        Finding(
            "messages that leave late",
            exposed,
            f"{ms(sent)} of communication would fit behind the backward pass, but {ms(exposed)} of "
            f"it is exposed: the first gradients leave when {left_at(one):.0%} of the "
            "computation is done. Look for one large bucket, a wrapper around the whole model "
            "only, or prefetching that is off.",
            "book/ddp/overlap",
        )
    ]


def about_data(step: StepTimes) -> list[Finding]:
    return [
        Finding(
            "loader",
            step.data,
            f"{ms(step.data)} of a step go by while Python waits for the loader. Try one batch "
            "again and again: if that is faster, give the loader workers (num_workers, "
            "pin_memory), or do less in it.",
            FAST,
        )
    ]


def about_gaps(ranks: Sequence[RankSteps], step: StepTimes) -> list[Finding]:
    found = []
    if not ranks[0].trace.is_gpu:
        said = "nothing is computed or sent: Python does what the profiler does not see."
        return [Finding("gaps", step.launches, f"For {ms(step.launches)} of a step {said}", FAST)]
    names = [name for each in ranks for *_, name in each.trace.waiting]
    by = f" ({max(set(names), key=names.count)}, {len(names)} times)" if names else ""
    found.append(
        Finding(
            "synchronization",
            step.synchronization,
            f"{ms(step.synchronization)} of a step are gaps after Python waited for the GPU{by}. "
            "Take .item(), print(loss) and torch.cuda.synchronize() out of the loop.",
            FAST,
        )
    )
    kernels = sum(len(each.trace.kernels) for each in ranks) / sum(each.number for each in ranks)
    found.append(
        Finding(
            "Python is too slow",
            step.launches - step.asking,
            f"For {ms(step.launches - step.asking)} of a step the GPU has nothing to do, because "
            f"Python asks for its {kernels:,.0f} kernels too slowly. Compile the blocks "
            "(torch.compile, with mode='reduce-overhead' for CUDA graphs), or give each kernel "
            "more to do: a larger batch. (A profiler slows Python, too: compare with the step "
            "without it.)",
            FAST,
        )
    )
    found.append(
        Finding(
            "copies",
            step.copies,
            f"{ms(step.copies)} of a step are copies with nothing else going on. Copy from pinned "
            "memory with non_blocking=True, while the step before computes.",
            FAST,
        )
    )
    return found


def about_kernels(
    ranks: Sequence[RankSteps], step: StepTimes, work: StepWork | None
) -> list[Finding]:
    if not ranks[0].trace.is_gpu:
        return []
    kernels = ranks[0].trace.kernels
    families = {share.name: share.time for share in by_family(kernels)}
    together = sum(families.values()) or 1.0
    other = sum(families.get(name, 0.0) for name in (OTHER, "softmax and norms")) / together
    fp32 = in_fp32(kernels) / together
    hints = []
    if fp32 > 0.2:
        hints.append(f"{fp32:.0%} are matrix products without tensor cores: use bf16, or TF32")
    if other > 0.3:
        hints.append(f"{other:.0%} go element by element: torch.compile fuses them")
    hint = f" Of its time {'; '.join(hints)}." if hints else ""
    page = "book/training_well/precision" if fp32 > max(0.2, other) else FAST
    if work is not None:
        slow = step.compute - 1e6 * work.flops / (GOOD * work.peak)
        rate = 1e6 * work.flops / work.peak / step.compute if step.compute else 0.0
        said = f"While it computes, the GPU does {rate:.0%} of its peak, and {GOOD:.0%} is usual."
        return [Finding("slow kernels", slow, f"{said}{hint}", page)]
    if not hints:
        return []
    lost = max(fp32 * 0.5, other - 0.3)  # tensor cores at least halve it
    return [Finding("slow kernels", lost * step.compute, f"Kernels are slow.{hint}", page)]


# --- what the rules look at


def is_inside(moment: float, rank: RankSteps) -> bool:
    return rank.steps[0].start <= moment <= rank.steps[-1].end


def inside(rank: RankSteps) -> list[Collective]:
    """The collectives of the steps, and not of what lies before or after them."""
    return [each for each in rank.trace.collectives if is_inside(each.start, rank)]


def most_exposed(rank: RankSteps) -> tuple[str, float]:
    """The kind of collective that is exposed most, and its µs in a mean step."""
    compute = rank.trace.busy("compute")
    times = defaultdict(list)
    for each in inside(rank):
        times[each.kind].append((each.start, each.end))
    exposed = {kind: length(minus(union(all_), compute)) for kind, all_ in times.items()}
    kind = max(exposed, key=lambda each: exposed[each], default="")
    return kind, exposed.get(kind, 0.0) / rank.number


def left_at(rank: RankSteps) -> float:
    """Which share of a step's computation is done when its first gradients leave."""
    compute, found = rank.trace.busy("compute"), []
    for step in rank.steps:
        starts = [
            c.start
            for c in rank.trace.collectives
            if step.start <= c.start < step.end and c.kind in ("all-reduce", "reduce-scatter")
        ]
        if starts and step.compute:
            found.append(length(within(compute, step.start, min(starts))) / step.compute)
    return mean(found) if found else 0.0


def link(rank: RankSteps) -> float:
    """W: the bandwidth that large collectives reach (bytes/s); 0 where sizes are not told."""
    return median([c.bandwidth for c in inside(rank) if c.bytes >= LARGE and c.bandwidth] or [0.0])


def threshold(rank: RankSteps, work: StepWork | None) -> str:
    """The book's rule T > gC/2W with what was measured, in bf16 where nothing else is known."""
    w = link(rank)
    if work is None or not work.tokens or not w or not rank.mean.compute:
        return ""
    c = work.flops / (rank.mean.compute / 1e6)
    return (
        f" Each rank has {work.tokens:,.0f} tokens, and gC/2W is {c / w:,.0f} with gradients of "
        f"two bytes (C = {c / 1e12:,.0f} TFLOP/s, W = {w / 1e9:,.1f} GB/s)."
    )


def ms(time: float) -> str:
    """µs as milliseconds, with two or three digits that count."""
    return f"{time / 1e3:.0f} ms" if time >= 99.5e3 else f"{time / 1e3:.2g} ms"
