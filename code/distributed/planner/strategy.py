"""Choice of a strategy for a model on given GPUs: what fits, how long a step takes, and why.

The rule: of the strategies that fit with a reserve, take the one with the shortest step. Of those
within 2% of it, take the simplest; of FSDP's three, which differ by one argument, take the one
that needs the least memory. A strategy that uses up the reserve fits on paper only, because
published memory peaks are higher than planned ones. It is chosen only if nothing else fits, with a
caution. `planner.job` computes the memory and the time of each strategy.
"""

from typing import NamedTuple

from distributed.cost import Cluster
from distributed.planner.batch import Batch, at_speed, off_by, shared_out, why_so_many
from distributed.planner.job import Job, Option, option
from distributed.planner.limits import check, within
from distributed.planner.measures import Next, Setting, next_to_try, other_trainings
from distributed.planner.schedules import STACKS

CLOSE = 0.02  # strategies whose steps differ by less are equally fast
SIMPLE = {"DDP": 0, "ZeRO-1": 1}  # before FSDP's three kinds, which differ by one argument
RESERVE = 0.1  # share of a GPU's memory that a plan leaves free


# Below these, launching kernels may take longer than running them: tokens in a micro-batch, and
# seconds for a layer's two passes. Python launches about 100 kernels for them, 10 µs each.
FEW_TOKENS, LAUNCHES = 1000, 1e-3


class Plan(NamedTuple):
    """All options, the recommended one (None: nothing fits), and the reasons in words."""

    options: list[Option]
    recommended: Option | None
    why: str
    cautions: tuple[str, ...] = ()  # what this plan cannot know
    reserve: float = RESERVE
    next: Next | None = None  # if nothing fits with the reserve: what to try first
    others: tuple[Next, ...] = ()  # if nothing fits: changes of the training that are enough
    margin: str = ""  # memory and time that the recommended one leaves
    why_batch: str = ""  # why it has its micro-batches, if a batch was asked for
    speed: float = 0.0  # of a GPU (FLOP/s) with the micro-batch of the recommended one

    def on_paper(self, each: Option, memory: float) -> bool:
        """Whether an option fits, but not with the reserve."""
        return each.fits and each.needs > (1 - self.reserve) * memory


def plan(
    job: Job,
    cluster: Cluster,
    memory: float,
    stack: str = "pytorch",
    batch: Batch | None = None,
    reserve: float = RESERVE,
) -> Plan:
    """Compare all strategies on ranks with `memory` bytes each; a share `reserve` stays free.

    With a `batch`, each strategy divides it into micro-batches as its memory allows. Without one,
    the job says how many rows and micro-batches there are. Raises ValueError for invalid arguments.
    """
    check(job, cluster, memory, stack)
    within("reserve", reserve)
    if batch is not None:
        within("batch", batch.tokens)
    alone, several = cluster.ranks == 1, cluster.ranks > cluster.per_host > 1
    names = [name for name in STACKS[stack] if name != "HSDP" or several]
    options = []
    for name in ["DDP"] if alone else names:
        for room in ((1 - reserve) * memory, memory):
            if batch is None:
                each = option(job, name, cluster, room, stack)
            else:
                each = shared_out(job, name, cluster, room, batch, stack)
            if each.fits:
                break
        options.append(each)
    found = recommend(options, memory, reserve)
    why = f"one GPU: nothing to share; {found.why}" if alone else found.why
    best, notes, why_batch = found.recommended, cautions(job, cluster), ""
    margin = margin_of(best, memory) if best else ""
    chosen = at_speed(cluster, best.job, batch) if best and batch else cluster
    paper: tuple[str, ...] = ()
    following = None
    others: tuple[Next, ...] = ()
    if best is None or found.on_paper(best, memory):
        before = best.needs if best else min(each.needs for each in options)
        now = Setting(job, cluster, batch, stack)
        following = next_to_try(now, (1 - reserve) * memory, before)
        way = following.in_words() if following else "no measure that is known is enough"
        if best is None:
            others = other_trainings(now, (1 - reserve) * memory, before)
            why += f"; {way}"
            if others:
                shown = ", ".join(each.in_short() for each in others)
                alone = batch is None and job.accumulate == 1
                only = "with a single micro-batch, these also fit" if alone else "these also fit"
                why += f"; {only}, but change the training: {shown}"
                if alone:
                    why += "; more micro-batches would also have to keep gradients between them"
        else:
            paper = (f"{why_on_paper(best, memory, reserve)}; {way}",)
    if batch is not None and best is not None:
        room = memory if paper else (1 - reserve) * memory
        why_batch = why_so_many(best, cluster, room, batch, stack)
        why += f"; {why_batch}"
        missed = off_by(batch, best.job, cluster.ranks)
        notes = cautions(best.job, chosen) + ((missed,) if missed else ())
    return found._replace(
        why=why,
        cautions=(*paper, *notes),
        next=following,
        others=others,
        margin=margin,
        why_batch=why_batch,
        speed=chosen.speed,
    )


def why_on_paper(best: Option, memory: float, reserve: float) -> str:
    """The caution for the only plan that fits, if it leaves less free than the reserve."""
    return (
        f"{best.name} fits on paper only, so expect to run out of memory: it leaves"
        f" {1 - best.needs / memory:.1%} of the memory free instead of {reserve:.0%} (--reserve)"
    )


MIXTURES = (
    "a mixture of experts: every rank is planned with all experts and every expert with as many"
    " tokens; its small matrices may be slower"
)


def cautions(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """What may make a step slower than planned."""
    return launches(job, cluster) + ((MIXTURES,) if job.model.experts else ())


def launches(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """A caution if a micro-batch or a layer is so short that launching its kernels matters."""
    layer = sum(job.flops()) * job.tokens / cluster.speed / job.model.layers
    short = [f"{job.tokens:,.0f} tokens in a micro-batch"] if job.tokens < FEW_TOKENS else []
    short += [f"a layer of {layer * 1e6:,.0f} µs"] if layer < LAUNCHES else []
    if not short:
        return ()
    said = " and ".join(short)
    return (f"{said}: launching kernels may take longer than they run; measure a step",)


def recommend(options: list[Option], memory: float, reserve: float = RESERVE) -> Plan:
    """The fastest option that fits with the reserve; of those about as fast, the simplest.

    If nothing fits with the reserve, choose among the options that fit on paper.
    """
    with_reserve = [each for each in options if each.needs <= (1 - reserve) * memory]
    fitting = with_reserve or [each for each in options if each.fits]
    if not fitting:
        return Plan(options, None, what_to_change(options, memory), (), reserve)
    fastest = min(each.step.total for each in fitting)
    close = [each for each in fitting if each.step.total <= (1 + CLOSE) * fastest]
    best = min(close, key=lambda each: (SIMPLE.get(each.name, len(SIMPLE)), each.needs))
    return Plan(options, best, reasons(options, best, memory, fitting), (), reserve)


def margin_of(best: Option, memory: float) -> str:
    """The memory that an option leaves free, and its waiting."""
    spare, waits = memory - best.needs, best.step.exposed / best.step.total
    return f"it leaves {spare / 1e9:.0f} GB free and spends {waits:.1%} of a step waiting"


def reasons(options: list[Option], best: Option, memory: float, fitting: list[Option]) -> str:
    """The margin, which options don't fit, and how much slower or faster the others are.

    `fitting` are the options that were compared.
    """
    why = [margin_of(best, memory)]
    simpler = options[: options.index(best)]
    if too_large := [each.name for each in simpler if not each.fits]:
        fit = "doesn't fit" if len(too_large) == 1 else "don't fit"
        why.append(f"{in_a_row(too_large)} {fit}")
    if paper := [each.name for each in options if each.fits and each not in fitting]:
        fit = "fits" if len(paper) == 1 else "fit"
        why.append(f"{in_a_row(paper)} {fit} on paper only, with too little memory to spare")
    others: dict[str, list[str]] = {}
    for other in options:
        if other in fitting and other is not best:
            margin = other.step.total / best.step.total - 1
            shown = f"{margin:.1%} slower" if margin >= 0 else f"{-margin:.1%} faster (a tie)"
            others.setdefault("just as fast" if abs(margin) < 5e-4 else shown, []).append(
                other.name
            )
    for shown, names in others.items():
        fit = "also fits and is" if len(names) == 1 else "also fit and are"
        why.append(f"{in_a_row(names)} {fit} {shown}")
    return "; ".join(why)


def in_a_row(names: list[str]) -> str:
    """DDP; DDP and ZeRO-1; DDP, ZeRO-1, and ZeRO-2."""
    *before, last = names
    comma = "," * (len(before) > 1)
    return f"{', '.join(before)}{comma} and {last}" if before else last


def what_to_change(options: list[Option], memory: float) -> str:
    """If nothing fits: by how much, and what takes most of the memory. See `measures` for a fix."""
    least = min(options, key=lambda each: each.needs)
    largest = max(least.memory, key=lambda part: least.memory[part])
    missing = f"{(least.needs - memory) / 1e9:,.1f} GB more than there is"
    needs = f"{least.name} needs the least, {least.needs / 1e9:,.1f} GB, which is {missing}"
    return f"nothing fits: {needs} ({least.needs / memory:.2f} ×); its largest part is {largest}"


class Run(NamedTuple):
    """What a plan means for a whole training run."""

    tokens_per_second: float
    days: float
    gpu_hours: float


def run_of(found: Option, ranks: int, tokens: float) -> Run:
    """Days and GPU-hours for this many tokens, without failures, evaluation and restarts."""
    rate = ranks * found.job.accumulate * found.job.tokens / found.step.total
    return Run(rate, tokens / rate / 86400, tokens / rate / 3600 * ranks)
