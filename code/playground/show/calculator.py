"""Calculators of memory and of scaling: see `chart` for how they work on the page itself.

What they compute is written twice, as it must be: in `distributed.model_states` and
`distributed.scaling`, and here as expressions of the chart. A test moves the sliders at random and
compares. Which stage cuts what, links and colours come from the modules.
"""

import math

import altair as alt

from distributed.model_states import RECIPES, STAGES, Recipe, per_rank, total
from distributed.plan import INTERCONNECTS
from distributed.scaling import BUCKET
from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import RANKS
from playground.show.memory_bars import PURPOSES

# bytes for each parameter: itself, its gradient, a master copy; and what the optimizer keeps
PRECISIONS = {
    "bf16, master copy in fp32": (2, 2, 4),
    "bf16, no master copy": (2, 2, 0),
    "bf16, master copy and gradients in fp32": (2, 4, 4),
    "fp32": (4, 4, 0),
}
OPTIMIZERS = {"Adam": 8, "8-bit Adam": 2, "SGD with momentum": 4, "SGD": 0}
DEVICES = {f"{size} GB": size * 1e9 for size in (16, 24, 40, 80, 141, 192)}
NETWORKS = {f"{rate} Gbit/s": rate / 8 * 1e9 for rate in (1, 10, 25, 100, 400, 3200)}
BUCKETS = {"1 MB": 1e6, "25 MB": BUCKET, "100 MB": 1e8, "everything in one": 1e15}
PER_HOST, LATENCY = 8, 1e-5
COUNTS = [2**i for i in range(15)]  # of ranks, up to 16,384


def model_size(exponent: float):
    """A slider of the number of parameters, P = 10^exponent."""
    shown = "format(pow(10, exponent - 9), ',.3~r') + ' billion'"
    return slider("exponent", "parameters", (8, 12.5, 0.01), exponent, shown)


def memory_calculator(billions: float = 70) -> Calculator:
    """Model states of one rank by stage, stacked by what they are for, against a GPU's memory.

    It opens with a model of so many billion parameters on 8 ranks.
    """
    one = Recipe(1, 1, 1, 1)
    rows = [
        {"stage": stage, "purpose": purpose, "place": place, "cut": half < 1}
        for i, stage in enumerate(STAGES)
        for place, (purpose, half) in enumerate(per_rank(1.0, 2, i, one).items())
    ]
    purposes = list(per_rank(1.0, 1, 0, one))
    base = alt.Chart(alt.Data(values=rows)).transform_calculate(
        size="datum.place < 3 ? precision[datum.place] : optimizer",
        GB="pow(10, exponent - 9) * datum.size / (datum.cut ? pow(2, doublings) : 1)",
    )
    x = alt.X("stage:N", sort=list(STAGES), axis=alt.Axis(title=None, labelAngle=0))
    bars = base.mark_bar(size=56).encode(
        x=x,
        y=alt.Y("GB:Q", title="GB on each rank"),
        color=alt.Color(
            "purpose:N",
            scale=alt.Scale(domain=purposes, range=[PURPOSES[name] for name in purposes]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        order="place:O",
        tooltip=["stage:N", "purpose:N", alt.Tooltip("GB:Q", format=",.1f")],
    )
    sums = base.transform_aggregate(total="sum(GB)", groupby=["stage"]).transform_calculate(
        said="format(datum.total, ',.1f') + (datum.total * 1e9 <= memory ? ' fits' : '')"
    )
    totals = sums.mark_text(dy=-8).encode(x=x, y="total:Q", text="said:N")
    limit = alt.Chart(alt.Data(values=[{}])).transform_calculate(GB="memory / 1e9")
    line = limit.mark_rule(strokeDash=[6, 4]).encode(y="GB:Q")
    ranks = slider("doublings", "ranks", (0, 13, 1), 3, "format(pow(2, doublings), ',')")
    recipe = RECIPES["bf16, Adam in fp32, fp32 master copy"]
    fits = [total(billions * 1e9, 8, stage, recipe) <= DEVICES["80 GB"] for stage in range(4)]
    below = " and ".join(name for name, fit in zip(STAGES, fits, strict=True) if fit)
    chart = alt.layer(bars, totals, line).add_params(
        *model_size(math.log10(billions * 1e9)),
        *ranks,
        *choice("precision", "precision", PRECISIONS, "bf16, master copy in fp32"),
        *choice("optimizer", "optimizer", OPTIMIZERS, "Adam"),
        *choice("memory", "memory of a GPU", DEVICES, "80 GB"),
    )
    return Calculator(
        style(chart),
        "Stacked bars of the model states on each rank for DDP and ZeRO-1, 2 and 3, and a dashed "
        f"line at the memory of a GPU of 80 GB. With {billions:g} billion parameters on 8 ranks, "
        f"{below or 'no bar'} stay below it.",
    )


def scaling_calculator() -> Calculator:
    """Efficiency of DDP over the number of ranks, with overlap and without."""
    rows = [
        {
            "ranks": n,
            "local": min(n, PER_HOST),
            "hosts": hosts,
            "levels": math.ceil(math.log2(hosts)),
        }
        for n, hosts in ((n, -(-n // PER_HOST)) for n in COUNTS)
    ]
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(size="2 * pow(10, exponent)")  # gradients in bf16
        .transform_calculate(k="max(1, ceil(datum.size / bucket))")
        .transform_calculate(piece="datum.size / datum.k")
        .transform_calculate(
            inside="2 * (datum.local - 1) * (link[0] + datum.piece / datum.local / link[1])",
            ring=f"2 * (datum.hosts - 1) * ({LATENCY} + datum.piece / datum.hosts / network)",
            tree=f"2 * datum.levels * {LATENCY} + 2 * datum.piece / network",
            compute="6 * pow(10, exponent) * pow(2, tokens) / (speed * 1e12)",
        )
        .transform_calculate(
            message="datum.inside + (datum.hosts > 1 ? min(datum.ring, datum.tree) : 0)"
        )
        .transform_calculate(
            hidden="datum.compute / 3 + max(2 / 3 * datum.compute / datum.k"
            " + datum.k * datum.message, 2 / 3 * datum.compute + datum.message)",
            added="datum.compute + datum.k * datum.message",
        )
        .transform_calculate(
            **{
                "at once": "datum.compute / datum.hidden",
                "one after the other": "datum.compute / datum.added",
            }
        )
        .transform_fold(["at once", "one after the other"], as_=["way", "efficiency"])
    )
    lines = base.mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=2.5).encode(
        x=alt.X(
            "ranks:Q",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(title="ranks, 8 on a host", values=COUNTS[::2], format=","),
        ),
        y=alt.Y("efficiency:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "way:N",
            scale=alt.Scale(range=RANKS[:2]),
            legend=alt.Legend(title="computing and sending", orient="top"),
        ),
        tooltip=["way:N", "ranks:Q", alt.Tooltip("efficiency:Q", format=".1%")],
    )
    tokens = slider("tokens", "tokens on each rank", (8, 17, 1), 13, "format(pow(2, tokens), ',')")
    speed = slider("speed", "speed of a rank", (10, 1000, 10), 400, "speed + ' TFLOP/s'")
    chart = alt.layer(lines).add_params(
        *model_size(math.log10(7e9)),
        *tokens,
        *speed,
        *choice("link", "inside a host", {k: list(v) for k, v in INTERCONNECTS.items()}, "nvlink"),
        *choice("network", "network of a host", NETWORKS, "400 Gbit/s"),
        *choice("bucket", "buckets", BUCKETS, "25 MB"),
    )
    return Calculator(
        style(chart),
        "Efficiency over the number of ranks, from 1 to 16,384. With 7 billion parameters and "
        "8,192 tokens on each rank it stays at one inside a host and falls beyond; the line for "
        "sending after computing lies below the one for both at once.",
    )
