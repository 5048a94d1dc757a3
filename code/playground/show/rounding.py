"""Two interactive charts of 16-bit rounding: updates that round away, gradients that become zero.

The charts compute on the page itself, so their expressions repeat the rounding. A test compares
both with torch's results for the same numbers.
"""

import altair as alt
import torch

from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import RANKS

AFTER_ONE = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # from 1 to the next number
ENDS = (0.983, 1.025)
ZERO, LARGEST = -25, 16  # powers of two: float16 has only numbers between them
STEP = "(update < 0 ? after_one / 2 : after_one)"  # below 1, the spacing is half as wide
LANDED = f"1 + {STEP} * round(update / {STEP})"


def rounding_chart(update: float = 0.003, dtype: str = "bfloat16") -> Calculator:
    """The numbers of a format around 1, an update to drag, and the result of rounding the sum."""
    x = alt.X(
        "value:Q",
        scale=alt.Scale(domain=ENDS, nice=False),
        axis=alt.Axis(title="value of the weight", format=".3f", tickCount=8, grid=False),
    )
    y = alt.Y(
        "row:N", sort=["sum", "numbers"], title=None, axis=alt.Axis(labels=False, ticks=False)
    )
    numbers = (
        alt.Chart(alt.Data(values=[{"i": i, "row": "numbers"} for i in range(-40, 30)]))
        .transform_calculate(value="1 + datum.i * (datum.i < 0 ? after_one / 2 : after_one)")
        .transform_filter(f"datum.value > {ENDS[0]} && datum.value < {ENDS[1]}")
        .mark_tick(thickness=2, size=40, color=RANKS[7])
        .encode(x=x, y=y)
    )
    one = alt.Chart(alt.Data(values=[{}])).transform_calculate(exact="1 + update", landed=LANDED)
    exact = (
        one.transform_calculate(value="datum.exact", row="'sum'")
        .mark_point(shape="diamond", size=140, filled=True, opacity=1, color=RANKS[1])
        .encode(x=x, y=y)
    )
    landed = (
        one.transform_calculate(value="datum.landed", row="'numbers'")
        .mark_point(size=170, filled=True, opacity=1, color=RANKS[0])
        .encode(x=x, y=y)
    )
    said = (
        one.transform_calculate(
            value="1.004",
            row="'sum'",
            said="(update < 0 ? '1 − ' : '1 + ') + format(abs(update), '.4f') + ' = '"
            " + format(datum.exact, '.4f') + ' becomes ' + format(datum.landed, '.4f')",
        )
        .mark_text(dy=-28, fontSize=13)
        .encode(x=x, y=y, text="said:N")
    )
    chart = alt.layer(numbers, exact, landed, said).add_params(
        *slider("update", "update", (-0.0125, 0.0125, 0.0005), update, "format(update, '+.4f')"),
        *choice("after_one", "format", AFTER_ONE, dtype),
    )
    return Calculator(
        style(chart).properties(height=130),
        "The numbers that bfloat16 has around 1, as ticks: steps of 0.0078 above 1 and of 0.0039 "
        "below. A diamond stands at the exact sum 1 + 0.003, a dot at 1, to which it is rounded.",
    )


def by_power(gradient: torch.Tensor) -> dict[int, int]:
    """Number of elements between 2^e and 2^(e + 1), for each e; zeros are left out."""
    exponents = gradient[gradient != 0].abs().log2().floor().int()
    found, counts = exponents.unique(return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def scale_chart(counts: dict[str, dict[int, int]], scale: int = 0) -> Calculator:
    """Sizes of gradients per layer, and how many become zero in float16 at a loss scale.

    `counts[layer][e]` gradients are between 2^e and 2^(e + 1). The initial scale is 2^scale.
    """
    rows = [
        {"layer": layer, "exponent": exponent, "count": count}
        for layer, found in counts.items()
        for exponent, count in sorted(found.items())
    ]
    base = alt.Chart(alt.Data(values=rows)).transform_calculate(
        left="datum.exponent + scale", right="datum.exponent + scale + 1", none="0"
    )
    x = alt.X(
        "left:Q",
        scale=alt.Scale(domain=[-45, 20], nice=False),
        axis=alt.Axis(title="size of a gradient, as a power of two", grid=False),
    )
    bars = base.mark_bar(opacity=0.75, clip=True).encode(
        x=x,
        x2="right:Q",
        y=alt.Y("count:Q", title="how many", stack=None),
        y2="none:Q",
        color=alt.Color(
            "layer:N",
            sort=list(counts),
            scale=alt.Scale(domain=list(counts), range=RANKS[: len(counts)]),
            legend=alt.Legend(title=None, orient="top", offset=26),  # room for the sentence
        ),
        tooltip=["layer:N", "count:Q"],
    )
    ends = (
        alt.Chart(alt.Data(values=[{"left": ZERO}, {"left": LARGEST}]))
        .mark_rule(strokeDash=[6, 4])
        .encode(x=x)
    )
    first = next(iter(counts))
    said = (
        base.transform_filter(f"datum.layer == '{first}'")
        .transform_calculate(
            zero=f"datum.right <= {ZERO} ? datum.count : 0",
            over=f"datum.left >= {LARGEST} ? datum.count : 0",
        )
        .transform_aggregate(
            all="sum(count)", zero="sum(zero)", over="sum(over)", groupby=["layer"]
        )
        .transform_calculate(
            left="-45",
            said="'of the ' + datum.layer + ' ' + format(datum.zero / datum.all, '.0%')"
            " + ' become zero' + (datum.over > 0 ? ', ' + format(datum.over / datum.all, '.0%')"
            " + ' infinite' : '')",
        )
        .mark_text(align="left", fontSize=13)
        .encode(x=x, y=alt.value(-8), text="said:N")
    )
    shown = "format(pow(2, scale), ',')"
    chart = alt.layer(bars, ends, said).add_params(
        *slider("scale", "loss scale", (0, 40, 1), scale, shown)
    )
    return Calculator(
        style(chart),
        "Histograms of the sizes of gradients of the first and of the last layer, over powers of "
        "two, with dashed lines at the two ends of float16. Unscaled, the gradients of the last "
        "layer lie inside, and almost half of those of the first layer left of the lower end.",
    )
