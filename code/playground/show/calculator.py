"""The calculator of scaling: see `chart` for how it works on the page itself.

What it computes is written twice, as it must be: in `distributed.scaling`, and here as expressions
of the chart. A test moves the sliders at random and compares. Links and colours come from the
modules.
"""

import math

import altair as alt

from distributed.planner.command import INTERCONNECTS
from distributed.scaling import BUCKET
from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import RANKS

EIGHT_PORTS = "8 × 400 Gbit/s"
NETWORKS = {f"{rate} Gbit/s": rate / 8 * 1e9 for rate in (1, 10, 25, 100, 400)}
NETWORKS[EIGHT_PORTS] = 400e9
BUCKETS = {"1 MB": 1e6, "25 MB": BUCKET, "100 MB": 1e8, "everything in one": 1e15}
PER_HOST, LATENCY = 8, 1e-5
COUNTS = [2**i for i in range(15)]  # of ranks, up to 16,384


def model_size(exponent: float):
    """A slider of the number of parameters, P = 10^exponent."""
    shown = "format(pow(10, exponent - 9), ',.3~r') + ' billion'"
    return slider("exponent", "parameters", (8, 12.5, 0.01), exponent, shown)


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
    tokens = slider("tokens", "tokens on each rank", (8, 17, 1), 12, "format(pow(2, tokens), ',')")
    speed = slider("speed", "speed of a rank", (10, 1000, 10), 400, "speed + ' TFLOP/s'")
    chart = alt.layer(lines).add_params(
        *model_size(math.log10(7e9)),
        *tokens,
        *speed,
        *choice("link", "inside a host", {k: list(v) for k, v in INTERCONNECTS.items()}, "nvlink"),
        *choice("network", "network of a host", NETWORKS, EIGHT_PORTS),
        *choice("bucket", "buckets", BUCKETS, "25 MB"),
    )
    return Calculator(
        style(chart),
        "Efficiency over the number of ranks, from 1 to 16,384. With 7 billion parameters and "
        "4,096 tokens on each rank it stays at one; the line for sending after computing falls "
        "beyond a host.",
    )
