"""Ledger of a GPU's memory, with a line per purpose: as a chart with controls, and as a table.

The formulas are in `distributed.planner.memory`, and here again as expressions, because a chart
can't call Python. A test moves the controls at random and compares.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import altair as alt
import torch

from distributed.model_states import RECIPES, STAGES
from distributed.planner.hardware import GPUS
from distributed.planner.job import ALLOWANCE, CONTEXT, Job, cluster_of, option
from distributed.planner.memory import Held, ledger
from distributed.planner.shapes import CHECKPOINTS, FUSED, PLAIN, PRESETS, Model
from distributed.planner.strategy import RESERVE
from distributed.workbench.memory_meter import MemoryUse
from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import GREY, PALE, QUIET
from playground.show.memory_bars import PURPOSES
from playground.show.tables import Table
from recipes.executed import Executed, Transformer, execute

COLOURS = {
    **{
        line: PURPOSES[line]
        for line in ("parameters", "gradients", "master copy", "optimizer states")
    },
    "casts": "#D55E00",
    "activations": QUIET,
    "logits": GREY,
    "gathered": PURPOSES["gathered"],
    "buckets": PURPOSES["buckets"],
    "allocator": PALE,
}
LINES = list(COLOURS)
MODELS = {
    "Llama 2 7B": "llama-2-7b",
    "Llama 3 8B": "llama-3-8b",
    "Llama 2 13B": "llama-2-13b",
    "Llama 3 70B": "llama-3-70b",
    "Llama 3 405B": "llama-3-405b",
    "GPT-3 175B": "gpt-3-175b",
}
PAPERS = "bf16, Adam in fp32, fp32 master copy"
PRECISIONS = {
    name: RECIPES[name]
    for name in (
        PAPERS,
        "bf16, fp32 master copy and gradients",
        "bf16, 8-bit Adam, fp32 master copy",
        "bf16, Adam in fp32, no master copy",
        "fp32, Adam",
    )
}
KEEP = {"none": 0, "selective": 1, "full": 2}
LOSSES = {"plain": PLAIN, "fused": FUSED}
CODE = {"PyTorch's": 1, "the ZeRO paper's": 0}
STACKS = ("book", "pytorch")  # indexed by the values of `CODE`
# A GPU by the size it is sold as, and the bytes of it that a plan may use
DEVICES = {
    f"{size} GB ({name.split('-')[0].upper()})": (1 - RESERVE) * GPUS[name].memory
    for size, name in (
        (16, "v100"),
        (24, "4090"),
        (40, "a100-40"),
        (80, "h100"),
        (141, "h200"),
        (192, "mi300x"),
    )
}
OURS = "80 GB (H100)"
SEVEN = Job(PRESETS["llama-2-7b"], rows=1, context=4096)  # one row, as long as it was trained with


def numbers(model: Model) -> list[float]:
    """What the chart's expressions take of a model: see `SHAPE`."""
    kept = [model.kept(checkpoint) for checkpoint in CHECKPOINTS]
    return [*(getattr(model, name) for name in SHAPE), *kept]


SHAPE = (
    *("layers", "block", "root", "d", "vocab_size", "multiplied"),
    *("cast_again", "gradients_within", "down"),
)


def ledger_of(
    job: Job, stage: int, ranks: int, checkpoint: str = "none", stack: str = "book"
) -> Held:
    """All lines of one rank's memory, with what the allocator loses and CUDA takes."""
    cluster = cluster_of(GPUS["h100"], ranks)
    found = ledger(job, STAGES[stage], cluster, checkpoint, stack)
    found["allocator"] = ALLOWANCE * sum(found.values()) + CONTEXT
    return {line: found[line] for line in LINES if found.get(line)}


def ledger_table(columns: Mapping[str, tuple[int, int]], job: Job = SEVEN) -> Table:
    """Memory of a Llama 2 7B in GB, by lines that change; a column is a stage and a rank count."""
    found = {name: ledger_of(job, *column) for name, column in columns.items()}

    def row(name: str, lines: Sequence[str]) -> tuple[str, ...]:
        sizes = (sum(each.get(line, 0.0) for line in lines) for each in found.values())
        return name, *(f"{size / 1e9:.1f}" for size in sizes)

    changing = [line for line in LINES if len({each.get(line) for each in found.values()}) > 1]
    same = [line for line in LINES if line not in changing]
    rows = [row(line, [line]) for line in changing]
    rows += [row("all other lines", same), row("in all", LINES)]
    return Table(["GB on each GPU", *found], rows)


def executed_ledger(
    asked: Sequence[tuple[str, str]], job: Job = SEVEN, ranks: int = 8
) -> list[tuple[str, str, float, Executed]]:
    """Strategy, checkpointing, bytes planned, and what PyTorch's tracker saw in a fake world."""
    cluster, found = cluster_of(GPUS["h100"], ranks, speed=4e14), []
    for name, checkpoint in asked:
        one = job._replace(checkpoint=checkpoint)
        planned = sum(ledger(one, name, cluster, checkpoint).values())
        seen = execute(option(one, name, cluster, 1e15), one, cluster)
        found.append((name, checkpoint, planned, seen))
    return found


def measure_activations(model: Model, token_counts: Sequence[int]) -> list[tuple[int, float, int]]:
    """Tokens of one row, bytes as `Model.activations` has them, and as measured at the peak."""
    torch.manual_seed(0)
    network = Transformer(model).to(torch.bfloat16)
    found = []
    for tokens in token_counts:
        words = torch.zeros(1, tokens, dtype=torch.long)
        network(words, words).backward()  # so that gradients are there, as in a ledger
        states = [*network.parameters(), *(each.grad for each in network.parameters())]
        with MemoryUse(partial(dict, states=states)) as use:
            network(words, words).backward()
        found.append((tokens, model.activations(tokens), use.peak["activations"]))
    return found


def activations_table(found: Sequence[tuple[int, float, int]]) -> Table:
    rows = [
        (f"{tokens:,}", f"{expected:,.0f} B", f"{measured:,} B", f"{measured / expected - 1:+.1%}")
        for tokens, expected, measured in found
    ]
    return Table(["tokens", "predicted", "measured", "difference"], rows)


def ledger_calculator(doublings: int = 3) -> Calculator:
    """One GPU's memory by stage and purpose; opens with 4,096 tokens of a 7B Llama in PyTorch."""
    rows = [
        {"stage": name, "number": number, "moment": moment}
        for number, name in enumerate(STAGES)
        for moment in range(15)  # what stays is always there, and FSDP2's peak is one of these
    ]
    base = _compute(alt.Chart(alt.Data(values=rows)))
    x = alt.X("stage:N", sort=list(STAGES), axis=alt.Axis(title=None, labelAngle=0))
    bars = (
        base.transform_fold([*LINES], as_=["line", "bytes"])
        .transform_calculate(GB="datum.bytes / 1e9", place=f"indexof({LINES}, datum.line)")
        .mark_bar(size=56)
        .encode(
            x=x,
            y=alt.Y("GB:Q", title="GB on each GPU"),
            color=alt.Color(
                "line:N",
                scale=alt.Scale(domain=LINES, range=[COLOURS[line] for line in LINES]),
                legend=alt.Legend(
                    title=None, orient="top", columns=2, columnPadding=24, values=_named()
                ),
            ),
            order="place:O",
            tooltip=["stage:N", "line:N", alt.Tooltip("GB:Q", format=",.1f")],
        )
    )
    said = "format(datum.held / 1e9, ',.1f') + (datum.held <= memory ? ' fits' : '')"
    sums = base.transform_calculate(total="datum.held / 1e9", said=said)
    totals = sums.mark_text(dy=-8).encode(x=x, y="total:Q", text="said:N")
    limit = alt.Chart(alt.Data(values=[{}])).transform_calculate(GB="memory / 1e9")
    line = limit.mark_rule(strokeDash=[6, 4]).encode(y="GB:Q")
    models = {name: numbers(PRESETS[preset]) for name, preset in MODELS.items()}
    chart = alt.layer(bars, totals, line).add_params(
        *slider("doubled", "tokens on a GPU", (8, 17, 1), 12, "format(pow(2, doubled), ',')"),
        *slider("doublings", "GPUs", (0, 13, 1), doublings, "format(pow(2, doublings), ',')"),
        *choice("model", "model", models, "Llama 2 7B"),
        *choice("checkpoint", "checkpointing", KEEP, "none"),
        *choice("precision", "precision", _lists(PRECISIONS), PAPERS),
        *choice("stack", "whose code", CODE, "PyTorch's"),
        *choice("scores", "loss", LOSSES, "plain"),
        *choice("memory", "memory of a GPU", DEVICES, OURS),
    )
    fits = [
        name
        for stage, name in enumerate(STAGES)
        if sum(ledger_of(SEVEN, stage, 2**doublings, stack="pytorch").values()) <= DEVICES[OURS]
    ]
    return Calculator(
        style(chart),
        "Stacked bars of everything that one GPU holds with DDP and ZeRO-1, 2 and 3, and a dashed "
        f"line at {DEVICES[OURS] / 1e9:.0f} GB. For a Llama of 7 billion parameters and 4,096 "
        f"tokens on each of {2**doublings} GPUs, {' and '.join(fits) or 'no bar'} stay below it.",
    )


def _named() -> alt.ExprRef:
    """What the legend names: the lines that this code can have."""
    by_pytorch, by_paper = (
        [line for line in LINES if line != other] for other in ("master copy", "casts")
    )
    return alt.ExprRef(f"stack ? {by_pytorch} : {by_paper}")


def _lists(options: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: list(option) for name, option in options.items()}


def _compute(chart: alt.Chart) -> alt.Chart:
    """`distributed.planner.memory`, as expressions of the chart."""
    names = {name: f"model[{i}]" for i, name in enumerate(SHAPE)}
    names |= {"p": "precision[0]", "g": "precision[1]", "m": "precision[2]", "s": "precision[3]"}
    names |= {"T": "pow(2, doubled)", "N": "pow(2, doublings)"}
    found = chart.transform_calculate(**names).transform_calculate(
        count="datum.layers * datum.block + datum.root",
        kept="datum.m || datum.p",
        shards="stack && datum.number > 1 && datum.N > 1",
        casting="stack && datum.m > 0 && datum.p == 2",
        every=f"model[{len(SHAPE)}]",
        some=f"model[{len(SHAPE)} + checkpoint]",
    )
    # By PyTorch's DDP under autocast, norms get what is not cast, and some results are cast again
    found = found.transform_calculate(
        replicas="stack && !datum.shards",
        extra="datum.casting && !datum.shards ? (datum.kept - datum.p) * datum.d : 0",
        again="datum.casting && !datum.shards ? datum.p * datum.cast_again : 0",
    ).transform_calculate(
        layer="datum.T * (datum.p * datum.every + 2 * datum.extra + datum.again)",
        within="datum.T * datum.p * datum.gradients_within",
        keeps="datum.T * (datum.p * datum.some + (checkpoint ? datum.extra"
        " : 2 * datum.extra + datum.again))",
        ends="datum.T * (2 * datum.p * datum.d + datum.extra)",
        scored="datum.T * scores * datum.vocab_size",
        done="datum.moment ? [0, 1, datum.layers - 2, datum.layers - 1]"
        "[floor((datum.moment - 1) / 3) % 4] : 0",
        stays="datum.number == 2",
    )
    # The moments of `fsdp2`: the loss; in four blocks' backward passes, at their ends, and when
    # what they send has been copied; the root; and when the last block is gathered
    in_a_block, copied = (f"datum.moment % 3 == {n} && datum.moment < 13" for n in (1, 0))
    of_fsdp2 = {
        "gradients": "datum.kept * (datum.moment == 13 ? datum.count :"
        " datum.moment == 14 ? 0 : datum.done * datum.block)"
        " / datum.N",
        "activations": "datum.moment == 0 ? datum.layers * datum.keeps + datum.ends :"
        " datum.moment == 13 ? 0 : datum.moment == 14 ? (datum.layers - 1) * datum.keeps :"
        " (datum.layers - 1 - datum.done) * datum.keeps"
        f" + ({in_a_block} ? datum.layer + datum.within : 0)",
        "logits": "datum.moment ? 0 : datum.scored",
        "gathered": "datum.p * (datum.moment == 13 ? datum.root : datum.moment == 14 ?"
        " (datum.stays ? datum.count + 2 * datum.block : datum.root + 3 * datum.block) :"
        " datum.moment == 0 ?"
        " (datum.stays ? datum.count : datum.root) + datum.block :"
        " (datum.stays ? datum.count - datum.done * datum.block :"
        " datum.root + datum.block * min(2, datum.layers - datum.done))"
        f" - ({copied} ? datum.block : 0))",
        "buckets": "datum.moment == 0 || datum.moment == 14 ? 0 : datum.moment == 13 ?"
        " datum.g * datum.block + (datum.g + datum.p) * datum.root :"
        f" datum.p * (datum.vocab_size * datum.d + ({in_a_block} ? datum.down : datum.block))"
        f" + ({copied} || datum.done ? datum.g * datum.block : 0)",
    }
    of_replicas = {
        "gradients": "datum.kept * datum.count",
        "activations": "datum.moment ? (datum.layers - 1) * datum.keeps + datum.layer"
        " + datum.within + datum.ends"
        " : datum.layers * datum.keeps + datum.ends",
        "logits": "datum.moment ? 0 : datum.scored",
        "gathered": "0",
        "buckets": "0",
    }
    cut = "(datum.number >= {} ? datum.N : 1)"
    of_listing = {
        "gradients": f"datum.g * datum.count / {cut.format(2)}",
        "activations": "datum.layers * datum.keeps + datum.ends + (checkpoint ? datum.layer : 0)",
        "logits": "datum.scored",
        "gathered": "datum.number == 3 && datum.N > 1 ?"
        " (2 * datum.block + datum.root) * datum.p : 0",
        "buckets": "datum.number > 1 && datum.N > 1 ? max(datum.block, datum.root) * datum.g : 0",
    }
    whose = {
        line: f"datum.shards ? ({of_fsdp2[line]}) : datum.replicas ? ({of_replicas[line]})"
        f" : ({of_listing[line]})"
        for line in of_fsdp2
    }
    found = found.transform_calculate(
        **whose,
        **{
            "parameters": "stack ? datum.kept * datum.count / (datum.shards ? datum.N : 1)"
            f" : datum.p * datum.count / {cut.format(3)}",
            "master copy": f"stack ? 0 : datum.m * datum.count / {cut.format(1)}",
            "optimizer states": "(stack ? min(datum.s, 2 * datum.kept) : datum.s) * datum.count"
            f" / {cut.format(1)}",
            "casts": "datum.casting && datum.replicas ? datum.p * datum.multiplied : 0",
        },
    )
    together = " + ".join(f"datum['{line}']" for line in LINES if line != "allocator")
    return (
        found.transform_calculate(tensors=together)
        .transform_window(
            place="row_number()",
            sort=[
                alt.SortField("tensors", order="descending"),
                alt.SortField("moment", order="ascending"),
            ],
            groupby=["stage"],
        )
        .transform_filter("datum.place == 1")
        .transform_calculate(allocator=f"{ALLOWANCE} * datum.tensors + {CONTEXT}")
        .transform_calculate(held="datum.tensors + datum.allocator")
    )
