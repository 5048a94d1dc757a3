"""Chart of the steps that additional ranks save, with controls; the noise scale decides.

On N ranks with b examples each, the batch has N b examples. The chart's expression is
`distributed.large_batch.more_steps(B, b, N b)`; a test compares the two.
"""

import math

import altair as alt

from playground.show.chart import Calculator, slider, style
from playground.show.colours import RANKS

COUNTS = [2 ** (i / 2) for i in range(21)]  # of ranks, up to 1,024
LINES = ["in proportion", "steps saved"]


def speedup_chart(noise_scale: float = 5000, examples: int = 32) -> Calculator:
    """Steps on one rank over steps on N ranks, each with as many examples."""
    base = (
        alt.Chart(alt.Data(values=[{"ranks": n} for n in COUNTS]))
        .transform_calculate(noise="pow(10, exponent)", each="pow(2, doublings)")
        .transform_calculate(
            **{
                LINES[0]: "datum.ranks",
                LINES[1]: "(1 + datum.noise / datum.each)"
                " / (1 + datum.noise / datum.each / datum.ranks)",
            }
        )
        .transform_fold([*LINES], as_=["line", "times"])
    )
    x = alt.X(
        "ranks:Q",
        scale=alt.Scale(type="log", base=2, domain=[1, 1024]),
        axis=alt.Axis(title="ranks", values=[2**i for i in range(0, 11, 2)], format=","),
    )
    lines = base.mark_line(strokeWidth=2.5, clip=True).encode(
        x=x,
        y=alt.Y(
            "times:Q",
            scale=alt.Scale(type="log", base=2, domain=[1, 1024]),
            axis=alt.Axis(
                title="how many times fewer steps", values=[2**i for i in range(0, 11, 2)]
            ),
        ),
        color=alt.Color(
            "line:N",
            scale=alt.Scale(domain=LINES, range=[RANKS[7], RANKS[0]]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        strokeDash=alt.StrokeDash(
            "line:N", scale=alt.Scale(domain=LINES, range=[[4, 4], [1, 0]]), legend=None
        ),
        tooltip=["line:N", alt.Tooltip("ranks:Q", format=",.0f"), alt.Tooltip("times:Q")],
    )
    bend = (
        alt.Chart(alt.Data(values=[{}]))
        .transform_calculate(ranks="pow(10, exponent) / pow(2, doublings)")
        .transform_calculate(
            said="'batch = noise scale;at ' + format(datum.ranks, ',.0f') + ' ranks'"
        )
        .transform_filter("datum.ranks >= 1 && datum.ranks <= 1024")
    )
    early = "pow(10, exponent) / pow(2, doublings) < 32"  # then there is no room to its left
    rule = bend.mark_rule(strokeDash=[2, 4], opacity=0.7).encode(x=x)
    said = bend.mark_text(
        dx=alt.expr(f"{early} ? 6 : -6"),
        align=alt.expr(f"{early} ? 'left' : 'right'"),
        baseline="bottom",
        lineBreak=";",
    ).encode(x=x, y=alt.value(18), text="said:N")
    chart = alt.layer(lines, rule, said).add_params(
        *slider(
            "exponent", "noise scale B (examples)", (1, 7, 0.05), math.log10(noise_scale),
            "format(pow(10, exponent), ',.2~r')",
        ),
        *slider(
            "doublings", "examples on each rank", (0, 10, 1), math.log2(examples),
            "format(pow(2, doublings), ',')",
        ),
    )  # fmt: skip
    return Calculator(
        style(chart),
        f"Steps saved over the number of ranks, on logarithmic axes. With a noise scale of "
        f"{noise_scale:,.0f} examples and {examples} on each rank the curve follows the diagonal "
        "at first, bends where the batch is as large as the noise scale, and is flat beyond.",
    )
