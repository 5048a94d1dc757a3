"""Calculator for scaling, which runs on the page itself (see `chart`).

The formulas are in `distributed.scaling`, and here again as expressions of the chart, because a
chart can't call Python. A test moves the sliders at random and compares. Colors come from a module.
"""

import math

import altair as alt

from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import RANKS

EIGHT_PORTS = "8 × 400 Gbit/s"
# bytes/s per host in one direction, at 80% of line rate
NETWORKS = {f"{rate} Gbit/s": 0.8 * rate / 8 * 1e9 for rate in (1, 10, 25, 100, 400)}
NETWORKS[EIGHT_PORTS] = 320e9
DEFAULT = "41 MB (limit 25 MiB)"
# bytes of the fp32 gradients in a bucket: those of the largest GPT-2 in 145 and in 49 buckets
BUCKETS = {"5 MB": 5e6, DEFAULT: 41.4e6, "122 MB (limit 100 MiB)": 122.5e6, "all in one": 2**50}
GRADIENTS = {"fp32": 4, "bf16": 2}
TOKENS = [round(2 ** (i / 2)) for i in range(16, 35)]  # 256 to 131,072


def model_size(exponent: float):
    """A slider of the number of parameters, P = 10^exponent."""
    shown = "format(pow(10, exponent - 9), ',.3~r') + ' billion'"
    return slider("exponent", "parameters", (8, 12.5, 0.01), exponent, shown)


def scaling_calculator() -> Calculator:
    """Efficiency of DDP over the tokens of each rank, with overlap and without."""
    model = (
        alt.Chart(alt.Data(values=[{"tokens": tokens} for tokens in TOKENS]))
        .transform_calculate(size="bytes * pow(10, exponent)")
        .transform_calculate(k="max(1, ceil(4 * pow(10, exponent) / bucket))")
        .transform_calculate(
            message="alpha / 1000 + 2 * datum.size / datum.k / network",
            compute="6 * pow(10, exponent) * datum.tokens / (speed * 1e12)",
        )
    )
    base = (
        model.transform_calculate(
            hidden="datum.compute / 3 + max(2 / 3 * datum.compute / datum.k"
            " + datum.k * datum.message, 2 / 3 * datum.compute + datum.message)",
            added="datum.compute + datum.k * datum.message",
        )
        .transform_calculate(
            **{
                "with overlap": "datum.compute / datum.hidden",
                "one after the other": "datum.compute / datum.added",
            }
        )
        .transform_fold(["with overlap", "one after the other"], as_=["way", "efficiency"])
    )
    lines = base.mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=2.5).encode(
        x=alt.X(
            "tokens:Q",
            scale=alt.Scale(type="log", base=2, domain=[TOKENS[0], TOKENS[-1]]),
            axis=alt.Axis(title="tokens per rank", values=TOKENS[::2], format=","),
        ),
        y=alt.Y("efficiency:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "way:N",
            scale=alt.Scale(range=RANKS[:2]),
            legend=alt.Legend(title="computing and sending", orient="top"),
        ),
        tooltip=["way:N", "tokens:Q", alt.Tooltip("efficiency:Q", format=".1%")],
    )
    # One row is enough: the threshold is the same for all of them.
    border = (
        model.transform_filter(f"datum.tokens == {TOKENS[0]}")
        .transform_calculate(
            least="datum.k * datum.message * speed * 1e12 / (4 * pow(10, exponent))"
        )
        .transform_calculate(
            at=f"min({TOKENS[-1]}, max({TOKENS[0]}, datum.least))",
            said="'threshold: ' + format(datum.least, ',.3~r') + ' tokens'",
        )
    )
    rule = border.mark_rule(strokeDash=[6, 4]).encode(x="at:Q")
    said = border.mark_text(align="right", fontWeight="bold", dx=-8, dy=-10).encode(
        x=alt.value("width"), y=alt.value("height"), text="said:N"
    )
    speed = slider("speed", "speed of a GPU", (10, 1000, 10), 400, "speed + ' TFLOP/s'")
    alpha = slider("alpha", "latency of a message", (0, 2, 0.05), 0.1, "alpha + ' ms'")
    chart = alt.layer(lines, rule, said).add_params(
        *model_size(math.log10(1.5e9)),
        *speed,
        *alpha,
        *choice("network", "ports per host, at 80%", NETWORKS, EIGHT_PORTS),
        *choice("bytes", "gradients", GRADIENTS, "fp32"),
        *choice("bucket", "buckets, on average", BUCKETS, DEFAULT),
    )
    return Calculator(
        style(chart),
        "Efficiency over the tokens of each rank, from 256 to 131,072. With overlap it rises to "
        "one at the dashed line, the threshold of 3,470 tokens, and stays there; for sending after "
        "computing it approaches one only slowly.",
    )
