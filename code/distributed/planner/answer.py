"""Answer of the planner, as ten lines, as text with all reasons, and as JSON.

It begins with what it assumes. Each step time has a band, made of the errors of published runs
like it, or a caution that there are none.
"""

import json
import textwrap
from functools import partial
from typing import Any, NamedTuple

from distributed.planner.assumed import WHOSE, Assumed, as_dict, in_brief, in_words
from distributed.planner.band import Band, band_of
from distributed.planner.batch import Batch, in_sequences
from distributed.planner.beyond import NO_BAND, beyond
from distributed.planner.calls import call_of
from distributed.planner.job import Job, Option
from distributed.planner.measures import Next
from distributed.planner.strategy import RESERVE, Plan, plan, run_of

WIDE = 88  # characters in a line
fill = partial(textwrap.fill, width=WIDE, break_on_hyphens=False)  # --lora isn't cut in two


class Asked(NamedTuple):
    """What a command line asks for, and notes on what is left out of the model."""

    assumed: Assumed
    notes: tuple[str, ...] = ()


class Answer(NamedTuple):
    """A plan with all of its cautions, and what it assumes."""

    plan: Plan
    assumed: Assumed
    has_band: bool  # or its times go beyond what was measured, and no band means anything

    @property
    def best(self) -> Option | None:
        """The recommended strategy."""
        return self.plan.recommended

    @property
    def job(self) -> Job:
        """The one that is planned: the recommended, or else the one that was asked for."""
        return self.best.job if self.best else self.assumed.job

    def band(self, strategy: str) -> Band | None:
        """How long a step of this strategy may take, by published runs."""
        if not self.has_band:
            return None
        assumed = self.assumed
        return band_of(assumed.gpu, strategy, assumed.speed is not None, assumed.job.context)


def answered(asked: Asked, batch: Batch | None = None, reserve: float = RESERVE) -> Answer:
    """Plan what is asked for, and leave a share `reserve` of the memory free. Raises ValueError."""
    assumed = asked.assumed
    found = plan(assumed.job, assumed.cluster, assumed.memory, assumed.stack, batch, reserve)
    # A micro-batch was chosen, and the speed depends on it
    assumed = assumed._replace(cluster=assumed.cluster._replace(speed=found.speed))
    outside = beyond(assumed, found.recommended) if found.recommended else []
    cautions = (*asked.notes, *found.cautions, *(each.said for each in outside))
    has_band = all(each.has_band for each in outside)
    return Answer(found._replace(cautions=cautions), assumed, has_band)


def as_text(answer: Answer, tokens: float = 0.0) -> str:
    """About ten lines for people, who see what was assumed first. GB are 10⁹ bytes.

    A strategy that doesn't fit has no time: no step of it could run. Without a band, the planned
    time is printed alone.
    """
    found, best = answer.plan, answer.best
    lines = [*assumptions(in_brief(answer.assumed)), "", *table(answer), recommendation(answer)]
    if best:
        library = WHOSE[answer.assumed.stack]
        call = call_of(best.name, answer.assumed.stack, answer.assumed.cluster)
        said = found.margin, found.why_batch, f"in {library}: {call}"
        lines += [indented(each) for each in said if each]
        lines += times(best, answer, tokens)
    if not best or found.on_paper(best, answer.assumed.memory):
        lines += ways_out(answer)
    for each in found.cautions:
        lines.append(fill(f"caution: {each.split('; ')[0]}", subsequent_indent="  "))
    return "\n".join([*lines, "", "all reasons, assumptions, and evidence: --explain"])


def in_full(answer: Answer, tokens: float = 0.0) -> str:
    """The same with all assumptions, reasons, and calls, and with what published runs say."""
    found = answer.plan
    lines = [*assumptions(in_words(answer.assumed)), "", *table(answer, with_parts=True)]
    lines.append(recommendation(answer))
    lines += [indented(reason) for reason in found.why.split("; ")]
    for caution in found.cautions:
        lines += clauses(f"caution: {caution}")
    if found.recommended:
        band = answer.band(found.recommended.name)
        words = band.in_words() if band else NO_BAND
        lines += [
            *times(found.recommended, answer, tokens),
            fill(f"band: {words}", subsequent_indent="  "),
        ]
        lines += calls(answer)
    for said in published(found, answer.assumed):
        lines += clauses(f"published: {said}")
    return "\n".join(lines)


def assumptions(topics: list[tuple[str, str]]) -> list[str]:
    """What is assumed, topic by topic."""
    wide = max(len(name) for name, _ in topics) + 1
    return [
        fill(said, initial_indent=f"{name:{wide}}", subsequent_indent=" " * wide)
        for name, said in topics
    ]


def table(answer: Answer, with_parts: bool = False) -> list[str]:
    """A line for each strategy: memory, whether it fits, micro-batches, and time."""
    found, memory = answer.plan, answer.assumed.memory
    has_batches = any((each.job.accumulate, each.job.rows) != (1, 1) for each in found.options)
    batches = f"{'batch':8}" if has_batches else ""
    head = f"{'':8}{'GB':>7} {'fits':6}{'checkpoint':12}{batches}{'step':>6}{'waits':>7}"
    lines = [f"{head}  largest parts" if with_parts else head]
    for each in found.options:
        fits = "yes" if each.fits else "no"
        if found.on_paper(each, memory):
            fits = "paper"
        line = f"{each.name:8}{each.needs / 1e9:7.0f} {fits:6}{each.checkpoint:12}"
        if has_batches:
            line += f"{f'{each.job.accumulate} × {each.job.rows:g}':8}"
        took = f"{'-':>6}{'-':>7}"
        if each.fits:
            took = f"{each.step.total:5.2f}s{each.step.exposed / each.step.total:7.1%}"
        line += took
        if with_parts:
            parts = sorted(each.memory.items(), key=lambda item: -item[1])[:2]
            line += f"  {', '.join(f'{name} {size / 1e9:.0f}' for name, size in parts)}"
        lines.append(line)
    return lines


def recommendation(answer: Answer) -> str:
    """The GPU's memory and the strategy to take; if nothing fits, what the least one needs."""
    found, of = answer.plan, f"of {answer.assumed.memory / 1e9:,.1f} GB"
    if found.recommended:
        return f"{of}; recommended: {found.recommended.name}"
    least = min(found.options, key=lambda each: each.needs)
    needs = f"even {least.name} needs {least.needs / 1e9:,.1f} {of}"
    return f"{of}; recommended: none, because {needs}"


def ways_out(answer: Answer) -> list[str]:
    """If nothing fits with the reserve: what to try, and what else could be trained."""
    found = answer.plan
    following = "no measure that is known is enough"
    if found.next:
        following = found.next.in_words().split("; ")[0]
    is_single = all(each.job.accumulate == 1 for each in found.options)
    way = "or with a single micro-batch, change" if is_single else "or change"
    others = [f"{way} the training: {each.in_short()}" for each in found.others]
    return [indented(each) for each in (following, *others)]


def times(best: Option, answer: Answer, tokens: float) -> list[str]:
    """Tokens per second of the recommended strategy, and how long the whole training takes."""
    ranks = answer.assumed.cluster.ranks
    run, band = run_of(best, ranks, tokens or 1.0), answer.band(best.name)
    step = f"{step_in_words(best.job, ranks)} tokens in {best.step.total:.2f} s"
    each_gpu = run.tokens_per_second / ranks
    rates = f"{run.tokens_per_second:,.0f} tokens/s, {each_gpu:,.0f} on each GPU"
    long, unit = (run.days, "days") if run.days >= 2 else (24 * run.days, "hours")
    whole = f"{long:,.1f} {unit}, {run.gpu_hours:,.0f} GPU-hours"
    if band:
        slowest, fastest = (each_gpu / factor for factor in (band.high, band.low))
        rates += f" (band: {slowest:,.0f} to {fastest:,.0f})"
        step += f" (band: {from_to(*band.of(best.step.total))} s)"
        ends, hours = (band.of(planned) for planned in (long, run.gpu_hours))
        whole = f"{from_to(*ends)} {unit}, {hours[0]:,.0f} to {hours[1]:,.0f} GPU-hours"
        whole += f" (planned: {long:,.1f} {unit})"
    of_all = indented(f"{in_short(tokens)} tokens: {whole}").lstrip()
    step = fill(step, subsequent_indent="  ")
    return [step, rates, of_all] if tokens else [step, rates]


def calls(answer: Answer) -> list[str]:
    """The call behind each strategy that fits."""
    stack = answer.assumed.stack
    said = f"the calls in {WHOSE[stack]}, for sharding alone (number formats, checkpointing,"
    said += " adapters and an optimizer's format come on top):"
    lines = [fill(said, subsequent_indent="  ")]
    for each in (one for one in answer.plan.options if one.fits):
        call = f"  {each.name:8}{call_of(each.name, stack, answer.assumed.cluster)}"
        lines.append(fill(call, subsequent_indent=" " * 10))
    return lines


def clauses(said: str) -> list[str]:
    """Its first clause, and the others below it."""
    first, *more = said.split("; ")
    return [fill(first, subsequent_indent="  "), *map(indented, more)]


def in_short(tokens: float) -> str:
    """1B for 10⁹, as people write it."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= unit:
            return f"{tokens / unit:g}{name}"
    return f"{tokens:,.0f}"


def from_to(low: float, high: float) -> str:
    """Both ends of a band, with as many digits as tell them apart."""
    places = 0 if low >= 10 else 1 if low >= 1 else 2
    return f"{low:,.{places}f} to {high:,.{places}f}"


def indented(said: str) -> str:
    """A reason, on as many lines as it needs."""
    return fill(said, initial_indent="  ", subsequent_indent="    ")


def as_json(answer: Answer, tokens: float, executed: Any = None) -> str:
    """All of it, for programs: bytes and seconds. Without bands if the plan is beyond them.

    `executed` is what an execution of the plans found, for the same programs.
    """
    found, assumed = answer.plan, answer.assumed
    options: list[dict[str, Any]] = [
        {
            "name": each.name,
            "call": call_of(each.name, assumed.stack, assumed.cluster),
            "checkpoint": each.checkpoint,
            "bytes": each.memory,
            "fits": each.fits,
            "on_paper": found.on_paper(each, assumed.memory),
            "step_s": each.step.total,
            "step_s_band": band.of(each.step.total) if (band := answer.band(each.name)) else None,
            "compute_s": each.step.compute,
            "exposed_s": each.step.exposed,
            "rows": each.job.rows,
            "accumulate": each.job.accumulate,
        }
        for each in found.options
    ]
    best = found.recommended
    whole: dict[str, Any] = {
        "assumed": as_dict(assumed),
        "recommended": best.name if best else None,
        "why": found.why,
        "next_to_try": next_as_dict(found.next),
        "others_to_try": [next_as_dict(each) for each in found.others],
        "cautions": found.cautions,
        "published": published(found, assumed),
        "options": options,
        "band": None,
    }
    if best:
        whole["run"] = run_of(best, assumed.cluster.ranks, tokens or 1.0)._asdict()
        band = answer.band(best.name)
        whole["run"]["days_band"] = band.of(whole["run"]["days"]) if band else None
        if not tokens:
            whole["run"] = {"tokens_per_second": whole["run"]["tokens_per_second"]}
        whole["band"] = band._asdict() | {"words": band.in_words()} if band else None
    if executed is not None:
        whole["executed"] = executed
    return json.dumps(whole, indent=1, allow_nan=False)


def next_as_dict(found: Next | None) -> dict[str, Any] | None:
    """What to try if nothing fits with the reserve: words, arguments, and bytes."""
    if found is None:
        return None
    return {
        "measures": [each.name for each in found.measures],
        "arguments": found.arguments,
        "strategy": found.strategy,
        "checkpoint": found.checkpoint,
        "bytes": found.needs,
        "bytes_before": found.before,
        "host_bytes": found.host,
    }


def step_in_words(job: Job, ranks: int) -> str:
    """Of what the tokens of a step are the product."""
    micro = f"{job.accumulate:,} micro-batch{'es' * (job.accumulate > 1)}"
    rows = f"{in_sequences(job.rows)} × {job.context:,} tokens"
    gpus = f"{ranks:,} GPU{'s' * (ranks > 1)}"
    return f"a step: {gpus} × {micro} × {rows} = {ranks * job.accumulate * job.tokens:,.0f}"


def published(found: Plan, assumed: Assumed) -> list[str]:
    """What published speeds say of the planned times."""
    from distributed.planner.validation import evidence

    fitting = [each.name for each in found.options if each.fits]
    return evidence(fitting, assumed.job.compiled, assumed.speed is None, assumed.gpu)
