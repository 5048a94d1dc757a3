"""BatchNorm on each rank: a chart with a slider that divides a batch among ranks, without a kernel.

It shows the same numbers twice, before and after a norm over each rank's own rows:
x̂ = (x − μ) / σ. Two rows always become −1 and 1.
"""

import math

import altair as alt

from playground.show.calculator import Calculator, slider, style
from playground.show.colours import RANKS

# Sixteen draws from a normal distribution.
NUMBERS = [
    0.74, 1.61, -0.92, 0.35, -0.21, 1.08, 2.03, -1.33,
    0.52, -0.64, 0.11, 1.37, -0.08, -1.71, 0.93, 0.27,
]  # fmt: skip
LANES = {1: "x", 0: "normalized"}


def norm_chart(ranks: int = 4) -> Calculator:
    """The numbers above, normalized below; the slider deals them out to 1, 2, 4 or 8 ranks."""
    rows = [{"i": i, "x": x} for i, x in enumerate(NUMBERS)]
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(rank=f"floor(datum.i * ranks / {len(NUMBERS)})")
        .transform_joinaggregate(mean="mean(x)", deviation="stdevp(x)", groupby=["rank"])
        .transform_calculate(
            normed="(datum.x - datum.mean) / datum.deviation", above="1", below="0", over="1.42"
        )
    )
    colour = alt.Color(
        "rank:O",
        scale=alt.Scale(domain=list(range(8)), range=RANKS[:8]),
        legend=None,
    )
    names = " : ".join(f"datum.value == {at} ? '{name}'" for at, name in LANES.items()) + " : ''"
    y = alt.Y(
        "above:Q",
        scale=alt.Scale(domain=[-0.35, 1.6]),
        axis=alt.Axis(
            title=None, values=list(LANES), labelExpr=names, grid=False, domain=False, minExtent=72
        ),
    )
    x = alt.X("x:Q", scale=alt.Scale(domain=[-2.2, 2.2]), title=None)
    threads = base.mark_rule(opacity=0.35).encode(x=x, x2="normed:Q", y=y, y2="below:Q")
    dots = base.mark_point(filled=True, size=90, opacity=1)
    tip = [alt.Tooltip("rank:O"), alt.Tooltip("x:Q"), alt.Tooltip("normed:Q", format=".2f")]
    above = dots.encode(x=x, y=y, color=colour, tooltip=tip)
    below = dots.encode(x="normed:Q", y="below:Q", color=colour, tooltip=tip)
    means = base.mark_tick(thickness=3, height=18, orient="vertical").encode(
        x="mean:Q", y="over:Q", color=colour
    )
    said = (
        base.transform_aggregate(low="min(mean)", high="max(mean)")
        .transform_calculate(
            said=f"format({len(NUMBERS)} / ranks, 'd') + ' rows on each of ' + ranks + ' ranks: "
            "means from ' + format(datum.low, '.2f') + ' to ' + format(datum.high, '.2f')"
        )
        .mark_text(align="left", fontWeight="bold")
        .encode(x=alt.value(0), y=alt.value(-8), text="said:N")
    )
    chart = alt.layer(threads, above, below, means, said).add_params(
        alt.param("ranks", expr="pow(2, doublings)"),
        *slider("doublings", "ranks", (0, 3, 1), int(math.log2(ranks)), "format(ranks, 'd')"),
    )
    return Calculator(
        style(chart).properties(height=150, width=520),
        f"{len(NUMBERS)} numbers as dots on a line, in the colors of the {ranks} ranks that have "
        "them, with a tick at each rank's mean. Below, the same numbers after BatchNorm on each "
        "rank, in a different order. With two rows on each rank, all are −1 or 1.",
    )
