"""Chart of the fastest of four all-reduce algorithms by size, with sliders.

A step takes a latency plus the time for the bytes that are sent in it, and steps run one after
another. The formulas are written again for the chart; a test moves the sliders and compares with
the messages that the modules count.
"""

import math

import altair as alt

from playground.show.chart import Calculator, slider, style
from playground.show.colours import RANKS

SIZES = [10 ** (3 + i / 10) for i in range(71)]  # bytes: 1 kB to 10 GB
# Number of consecutive steps, and number of whole arrays that pass one link in all of them.
STEPS = {
    "through rank 0": ("2 * (datum.ranks - 1)", "2 * (datum.ranks - 1)"),
    "tree": ("2 * doublings", "2 * doublings"),
    "ring": ("2 * (datum.ranks - 1)", "2 * (datum.ranks - 1) / datum.ranks"),
    "halving and doubling": ("2 * doublings", "2 * (datum.ranks - 1) / datum.ranks"),
}


def crossing_calculator() -> Calculator:
    """Time over size on logarithmic axes; a line where ring and tree take equally long."""
    given = {
        "ranks": "pow(2, doublings)",
        "latency": "1e-6 * pow(10, delay)",
        "rate": "1e9 * pow(10, speed)",
    }
    times = {
        name: f"{steps} * datum.latency + {arrays} * datum.size / datum.rate"
        for name, (steps, arrays) in STEPS.items()
    }
    base = (
        alt.Chart(alt.Data(values=[{"size": size} for size in SIZES]))
        .transform_calculate(**given)
        .transform_calculate(**times)
        .transform_fold([*STEPS], as_=["algorithm", "seconds"])
    )
    x = alt.X(
        "size:Q",
        scale=alt.Scale(type="log", domain=[SIZES[0], SIZES[-1]]),
        axis=alt.Axis(title="size of the array (bytes)", format="~s", values=powers(3, 10)),
    )
    lines = base.mark_line(strokeWidth=2.5, clip=True).encode(
        x=x,
        y=alt.Y(
            "seconds:Q",
            scale=alt.Scale(type="log", domain=[1e-5, 100]),
            axis=alt.Axis(title="time (s)", format="~s", values=powers(-5, 2)),
        ),
        color=alt.Color(
            "algorithm:N",
            scale=alt.Scale(domain=[*STEPS], range=[RANKS[7], RANKS[1], RANKS[0], RANKS[2]]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        strokeDash=alt.StrokeDash(
            "algorithm:N",
            scale=alt.Scale(domain=[*STEPS], range=[[2, 2], [1, 0], [1, 0], [7, 3]]),
            legend=None,
        ),
        tooltip=["algorithm:N", alt.Tooltip("size:Q", format="~s"), "seconds:Q"],
    )
    cross = (
        alt.Chart(alt.Data(values=[{}]))
        .transform_calculate(**given)
        .transform_calculate(
            size="datum.latency * datum.rate * (datum.ranks - 1 - doublings)"
            " / (doublings - (datum.ranks - 1) / datum.ranks)"
        )
        .transform_calculate(
            said="'ring and tree cross at ' + format(datum.size / 1e6, ',.2~r') + ' MB'"
        )
        .transform_filter(f"datum.size > {SIZES[0]} && datum.size < {SIZES[-1]}")
    )
    rule = cross.mark_rule(strokeDash=[4, 4], opacity=0.7).encode(x=x)
    said = cross.mark_text(dx=6, dy=-4, align="left", baseline="bottom").encode(
        x=x, y=alt.value(238), text="said:N"
    )
    chart = alt.layer(lines, rule, said).add_params(
        *slider("doublings", "ranks", (1, 13, 1), 10, "format(pow(2, doublings), ',')"),
        *slider("delay", "latency α", (-0.5, 2, 0.05), 1, "format(pow(10, delay), '.2~r') + ' µs'"),
        *slider(
            "speed", "bandwidth W", (-1, 3, 0.05), math.log10(40),
            "format(pow(10, speed), '.2~r') + ' GB/s'",
        ),
    )  # fmt: skip
    return Calculator(
        style(chart),
        "Time of an all-reduce over its size for four algorithms, both axes logarithmic, on 1,024 "
        "ranks with 10 microseconds and 40 gigabytes per second. All lines are flat on the left "
        "and climb on the right. Halving and doubling is lowest everywhere; the tree lies below "
        "the ring up to about 45 megabytes, and above it beyond.",
    )


def powers(first: int, last: int) -> list[float]:
    return [10.0**i for i in range(first, last + 1)]
