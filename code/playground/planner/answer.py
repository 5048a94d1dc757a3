"""HTML of a plan: the recommendation with its reason, numbers, bars, a timeline, and copies.

The page calls only `answer("model=llama-3-8b&nodes=1")`, both when it is built and in a tab.
"""

import json
import math
from collections.abc import Iterator, Mapping
from html import escape

from distributed.planner.answer import Answer, answered
from distributed.planner.assumed import in_words
from distributed.planner.batch import in_sequences
from distributed.planner.beyond import NO_BAND
from distributed.planner.job import Option, memory_of
from distributed.planner.limits import number
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS
from distributed.planner.strategy import Plan, run_of
from distributed.planner.streams import SimulatedStep, Span
from playground.planner.form import (
    FIELDS,
    WrongError,
    asked,
    query_of,
    state_of,
    words_of,
    wrong,
)
from recipes.copies import command_line, deepspeed_json, torch_code, torchrun_line

ROOM = 1.6  # the rows have at least this much room, in units of the GPU's memory
LINE = 1 / ROOM  # where the GPU's memory ends, as a share of the rows' width
WIDE = 1000  # width of a timeline, in its own units
HAIR = 0.8  # width of the thinnest span, in the same units
LANES = ("compute", "gather", "reduce", "reduce between hosts")
KINDS = ("forward", "backward", "gather", "reduce", "all-reduce")
NO_BF16 = (
    "has no bf16: train in fp16, and scale the loss with torch.amp.GradScaler,\n"
    "# which the code that is copied here for other GPUs doesn't do."
)


def answer(query: str) -> str:
    """JSON: `query` (what differs from the defaults) with `said` and `html`, or `errors`."""
    try:
        state = state_of(query)
        found = planned(state)
    except WrongError as error:
        return json.dumps({"errors": {error.field: str(error)}})
    said = sentence(found)
    return json.dumps({"query": query_of(state), "said": said, "html": html(state, found)})


def planned(state: Mapping[str, str]) -> Answer:
    """Plan for the state of the form. Raises WrongError, naming the field."""
    wanted = asked(state)
    try:
        return answered(*wanted)
    except (ValueError, OverflowError) as error:
        raise wrong(error) from None


# --- words and numbers


def sentence(found: Answer) -> str:
    """The recommendation and its reasons, as one sentence."""
    best, why = found.best, found.plan.why
    if best is None:
        return f"{why[0].upper()}{why[1:]}."
    again = {"none": "without checkpointing", "full": "with full checkpointing"}
    how = again.get(best.checkpoint, f"with {best.checkpoint} checkpointing")
    return f"Take {best.name} {how}: {why}."


def seconds(value: float) -> str:
    if value < 0.1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def between(low: float, high: float) -> str:
    """Both ends of a band of seconds, in one unit."""
    first, last = seconds(low), seconds(high)
    same = first.split()[-1] == last.split()[-1]
    return f"{first.split()[0] if same else first} to {last}"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 9.95e9 else f"{size / 1e9:,.0f} GB"


def days(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def facts(found: Answer, state: Mapping[str, str]) -> list[tuple[str, str]]:
    """Names and values of the recommended plan's main numbers."""
    best, job, cluster = found.best, found.job, found.assumed.cluster
    if best is None:
        return []
    tokens, n = number(state["tokens"]), cluster.ranks
    run = run_of(best, n, tokens)
    flops = job.model.flops(job.context) * job.accumulate * job.tokens
    hours = run.gpu_hours / tokens * 1e6
    around = found.band(best.name)
    low, high = around.of(1.0) if around else (0.0, 0.0)
    shown = [
        ("time per step", seconds(best.step.total)),
        ("band of a step", between(low * best.step.total, high * best.step.total)),
        ("tokens per step", f"{n * job.accumulate * job.tokens:,.0f}"),
        ("micro-batches", f"{job.accumulate:,} of {in_sequences(job.rows)}"),
        ("tokens/s", f"{run.tokens_per_second:,.0f}"),
        ("tokens/s per GPU", f"{run.tokens_per_second / n:,.0f}"),
        ("MFU", f"{flops / best.step.total / found.assumed.peak:.0%}"),
        ("days", days(run.days)),
        ("band of the days", f"{days(low * run.days)} to {days(high * run.days)}"),
        ("GPU-hours", f"{run.gpu_hours:,.0f}"),
        ("per million tokens", f"{hours:.2g} GPU-hours"),
    ]
    if around is None:
        shown = [each for each in shown if each[0] not in ("band of a step", "band of the days")]
    if price := number(state["price"] or "0"):
        shown += [
            ("cost per million tokens", f"{price * hours:.3g}"),
            ("total cost", f"{price * run.gpu_hours:,.0f}"),
        ]
    return shown


# --- when nothing fits


def ways_out(state: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Changes that make something fit, all tried: description of the change, and new state."""
    found = []
    for several in alternatives(state):
        for said, change in several:
            new = {**state, **change}
            if fits(new) and (best := planned(new).best):
                found.append((f"{said}: {best.name} fits", new))
                break
    return found


def fits(state: Mapping[str, str]) -> bool:
    """Whether any strategy fits in memory. It doesn't simulate a step."""
    job, cluster, memory = asked(state)[0].assumed[:3]
    wanted = CHECKPOINTS if job.checkpoint == "auto" else (job.checkpoint,)
    names = [name for name in STACKS[state["stack"]] if name != "HSDP"]
    return any(
        sum(memory_of(job, name, cluster, checkpoint, state["stack"]).values()) <= memory
        for name in names
        for checkpoint in wanted
    )


def alternatives(state: Mapping[str, str]) -> Iterator[list[tuple[str, dict[str, str]]]]:
    """Kinds of changes to try, each as a list of steps from small to large."""
    hosts, context = number(state["nodes"]), number(state["context"])
    more = [round(hosts * 2**k) for k in range(1, 8)]
    yield [(f"{n:,} hosts", {"nodes": str(n)}) for n in more]
    yield [("full checkpointing", {"checkpoint": "full"})]
    shorter = [round(context / 2**k) for k in range(1, 8) if context / 2**k >= 512]
    yield [("one sequence per GPU", {"rows": "1"})]
    yield [(f"sequences of {t:,} tokens", {"context": str(t)}) for t in shorter]
    yield [("a fused loss", {"fused_loss": "on"})]
    yield [("8-bit Adam", {"recipe": "bf16-8-bit-adam-fp32-master-copy"})]
    larger = {name: FIELDS["gpu"].choices[name] for name in ("a100", "h200", "b200", "mi300x")}
    yield [(said, {"gpu": name, "gpu_memory": ""}) for name, said in larger.items()]
    least = {"rows": "1", "checkpoint": "full", "fused_loss": "on"}
    yield [
        (
            f"{n:,} hosts, one sequence per GPU, full checkpointing, and a fused loss",
            least | {"nodes": str(n)},
        )
        for n in more
    ]


# --- pictures


def end_of(memories: float, most: float) -> float:
    """Where a bar of so many GPU memories ends, as a share of the width. The longest has `most`.

    Up to one memory, bars are on a linear scale, and beyond on a logarithmic one: what needs 16
    times a GPU's memory looks larger than what needs twice of it, and both fit on a phone.
    """
    if memories <= 1:
        return LINE * memories
    return LINE + (1 - LINE) * math.log(memories) / math.log(max(most, ROOM))


def bar(each: Option, memory: float, most: float) -> str:
    """Bar of the bytes per GPU by purpose, from left to right."""
    left, below, parts = 0.0, 0.0, []
    for part, size in each.memory.items():
        below += size
        right = end_of(below / memory, most)
        if right > left:
            parts.append(
                f'<i class="planner-part-{part.split()[0]}" style="width:{right - left:.3%}"></i>'
            )
        left = right
    said = ", ".join(f"{part} {gigabytes(size)}" for part, size in each.memory.items() if size)
    return f'<span class="planner-bar" role="img" aria-label="{said}">{"".join(parts)}</span>'


def row(each: Option, found: Plan, memory: float, most: float) -> str:
    waits = each.step.exposed / each.step.total
    if each.fits:
        paper = "on paper only: " if found.on_paper(each, memory) else ""
        said = f"{paper}{seconds(each.step.total)} per step, {waits:.1%} of it waiting"
    else:
        times = each.needs / memory
        places = sum(times < border for border in (2, 10))
        said = f"{times:,.{places}f}× the GPU's memory"
    chosen = " planner-best" if each is found.recommended else ""
    return (
        f'<li class="planner-row{chosen}"><span class="planner-name">{each.name}</span>'
        f"{bar(each, memory, most)}<span>{gigabytes(each.needs)}</span>"
        f'<span class="planner-what">{said}</span></li>'
    )


def joined(spans: list[Span], until: float) -> Iterator[tuple[str, float, float]]:
    """Pieces of a stream (kind, left, right); adjacent spans of the same kind are joined."""
    kind, left, right = "", 0.0, 0.0
    for span in spans:
        start, end = WIDE * span.start / until, WIDE * span.end / until
        end = max(end, start + HAIR)
        if span.name.split()[0] == kind and start <= right + HAIR / 2:
            right = max(right, end)
            continue
        if kind:
            yield kind, left, right
        kind, left, right = span.name.split()[0], start, end
    if kind:
        yield kind, left, right


def timeline(step: SimulatedStep) -> str:
    """Timeline of a step, with one line per stream."""
    until = max(span.end for span in step.spans)
    lines = []
    for lane in LANES:
        spans = [span for span in step.spans if span.stream == lane]
        paths: dict[str, list[str]] = {}
        for kind, left, right in joined(spans, until):
            piece = f"M{left:.4g} 0h{right - left:.3g}v9h-{right - left:.3g}z"
            paths.setdefault(kind, []).append(piece)
        drawn = "".join(
            f'<path class="planner-{kind}" d="{"".join(pieces)}"/>'
            for kind, pieces in paths.items()
        )
        if drawn:
            box = f'viewBox="0 0 {WIDE} 9" preserveAspectRatio="none"'
            lines.append(f'<span>{lane}</span><svg {box} aria-hidden="true">{drawn}</svg>')
    shown = "" if until >= step.total * 0.999 else " (its first micro-batches)"
    said = f"{seconds(step.compute)} of {seconds(step.total)} are computation"
    return (
        f'<div class="planner-lanes" role="img" aria-label="The streams of a step: {said}.">'
        f'{"".join(lines)}<span></span><span class="planner-axis"><span>0</span>'
        f"<span>{seconds(until)}{shown}</span></span></div>"
    )


# --- the whole answer


def legend(parts: list[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="planner-{p}"></i>{said}</li>' for p, said in parts)
    return f'<ul class="planner-legend">{items}</ul>'


def copies(found: Answer, state: Mapping[str, str]) -> dict[str, str]:
    """Texts to copy: name → text."""
    best, job, cluster = found.best, found.job, found.assumed.cluster
    one = found.assumed.gpu
    texts = {"command line": command_line(words_of(state))}
    if best is not None:
        texts["PyTorch"] = torch_code(best, job, cluster)
        if one.dtype == "fp16" and job.recipe.parameters == 2:
            texts["PyTorch"] = f"# The {one.name} {NO_BF16}\n"
        texts["DeepSpeed"] = deepspeed_json(best, job, cluster, one.dtype)
        texts["torchrun"] = torchrun_line(cluster)
    return texts


def assumptions(found: Answer) -> str:
    """List of the assumptions, which comes before the result."""
    said = in_words(found.assumed)
    items = "".join(f"<li><b>{name}</b> {escape(words)}</li>" for name, words in said)
    return f'<ul class="planner-assumed" aria-label="What this plan assumes">{items}</ul>'


def html(state: Mapping[str, str], found: Answer) -> str:
    """Everything below the form."""
    best, memory = found.best, found.assumed.memory
    first, colon, rest = escape(sentence(found)).partition(":")
    parts = [assumptions(found)]
    parts += [f'<p class="planner-why"><strong>{first}{colon}</strong>{rest}</p>']
    parts += [
        f'<p class="planner-note planner-caution">Caution: {escape(each)}.</p>'
        for each in found.plan.cautions
    ]
    if best is None:
        items = "".join(
            f'<li><a class="planner-way" href="?{escape(query_of(new))}">{escape(said)}</a></li>'
            for said, new in ways_out(state)
        )
        parts.append(f'<ul class="planner-ways" aria-label="What to change">{items}</ul>')
    numbers = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts(found, state)
    )
    if numbers:
        parts.append(f'<dl class="planner-facts">{numbers}</dl>')
    if best is not None:
        around = found.band(best.name)
        words = around.in_words() if around else NO_BAND
        parts.append(f'<p class="planner-note">The bands: {escape(words)}.</p>')

    most = max(each.needs for each in found.plan.options) / memory
    rows = "".join(row(each, found.plan, memory, most) for each in found.plan.options)
    sizes = [part for each in found.plan.options for part in each.memory.items()]
    held = dict.fromkeys(part for part, size in sizes if size)
    parts.append(f'<ul class="planner-rows" style="--line:{LINE:.1%}">{rows}</ul>')
    parts.append(legend([(f"part-{part.split()[0]}", part) for part in held]))
    parts.append(
        f'<p class="planner-note">Memory on each GPU; the line is its {gigabytes(memory)}.'
        f" Right of the line, the scale is logarithmic.</p>"
    )
    if best is not None:
        parts.append(f'<p class="planner-title">A step of {best.name}</p>{timeline(best.step)}')
        used = {span.name.split()[0] for span in best.step.spans}
        parts.append(legend([(kind, kind) for kind in KINDS if kind in used]))

    texts = copies(found, state)
    buttons = "".join(
        f'<button type="button" class="planner-copy" data-copy="{number}">{name}</button>'
        for number, name in enumerate(texts)
    )
    blocks = "".join(
        f'<pre class="planner-text" tabindex="0" role="group" aria-label="{name}" hidden>'
        f"{escape(text)}</pre>"
        for name, text in texts.items()
    )
    link = '<button type="button" class="planner-copy" data-copy="link">link</button>'
    parts.append(f'<p class="planner-copies"><span>Copy as</span> {link}{buttons}</p>{blocks}')
    return "".join(parts)
