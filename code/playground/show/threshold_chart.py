"""When gradients hide: one step of DDP on GPUs, with sliders for T, C, W and g.

The chart's expressions are those of the page *Overlap*: forward 2ΨT/C, backward 4ΨT/C, and
sending 2gΨ/W, which begins when the first layer's gradients are there; the last layer's share of it
cannot leave before the backward pass is over. Ψ stretches all bars alike.
"""

import altair as alt

from playground.show.calculator import Calculator, slider, style
from playground.show.chart import choice
from playground.show.colours import KINDS

BILLIONS, LAYERS = 7.0, 32
LINKS = {
    "100 Gbit/s Ethernet: 12.5 GB/s": 12.5,
    "one 400 Gbit/s port: 50 GB/s": 50.0,
    "eight such ports of a host: 400 GB/s": 400.0,
    "NVLink of an H100: 450 GB/s": 450.0,
}
LANES = ["computes", "sends"]


def threshold_chart(tokens: int = 4096, teraflops: int = 400, link: float = 50.0) -> Calculator:
    """A step's bars, and the number of tokens from which on its messages hide."""
    rows = [
        {"lane": LANES[0], "part": "forward"},
        {"lane": LANES[0], "part": "backward"},
        {"lane": LANES[1], "part": "all-reduce"},
        {"lane": LANES[1], "part": "last message"},
    ]
    forward = f"(2 * {BILLIONS} * tokens / speed)"  # ms: 10⁹ parameters by 10¹² FLOP/s
    backward, send = f"(2 * {forward})", f"(2 * bytes * {BILLIONS} / link * 1000)"
    first, over = f"({forward} + {backward} / {LAYERS})", f"({forward} + {backward})"
    last, others = f"({send} / {LAYERS})", f"({send} * {LAYERS - 1} / {LAYERS})"
    last_begins = f"max({over}, {first} + {others})"

    def of_each(*expressions: str) -> str:
        parts = zip((row["part"] for row in rows), expressions, strict=True)
        return "".join(f"datum.part == '{part}' ? {one} : " for part, one in parts) + "0"

    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(
            begin=of_each("0", forward, first, last_begins),
            wide=of_each(forward, backward, others, last),
        )
        .transform_calculate(
            end="datum.begin + datum.wide",
            kind=f"datum.lane == '{LANES[1]}' ? 'communication' : 'compute'",
        )
    )
    y = alt.Y("lane:N", sort=LANES, axis=alt.Axis(title=None, minExtent=60))
    bars = base.mark_bar(height=26, stroke="white", strokeWidth=0.7).encode(
        y=y,
        x=alt.X("begin:Q", title="time (ms)", scale=alt.Scale(domainMin=0, nice=True)),
        x2="end:Q",
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(
                domain=["compute", "communication"],
                range=[KINDS["compute"], KINDS["communication"]],
            ),
            legend=alt.Legend(title=None, orient="top"),
        ),
        tooltip=["part:N", alt.Tooltip("wide:Q", format=",.0f", title="ms")],
    )
    done = alt.Chart(alt.Data(values=[{}])).transform_calculate(
        over=over,
        waits=f"{last_begins} + {last} - {over}",
        alone=last,
        least="1000 * bytes * speed / (2 * link)",
    )
    rule = done.mark_rule(strokeDash=[6, 4]).encode(x="over:Q")
    said = (
        done.transform_calculate(
            said="'hides from ' + format(datum.least, ',.0f') + ' tokens on: with '"
            " + format(tokens, ',') + ', ' + format(datum.waits, ',.0f') + ' ms wait'"
            " + (datum.waits > 1.001 * datum.alone ? '' : ', the last message')"
        )
        .mark_text(align="left", fontWeight="bold", dy=-8)
        .encode(x=alt.value(0), y=alt.value(0), text="said:N")
    )
    chart = alt.layer(bars, rule, said).add_params(
        alt.param("tokens", expr="pow(2, doublings)"),
        *slider(
            "doublings", "T, tokens of a rank", (9, 17, 1), tokens.bit_length() - 1,
            "format(tokens, ',')",
        ),
        *slider("speed", "C", (50, 1000, 50), teraflops, "speed + ' TFLOP/s'"),
        *choice("link", "W", LINKS, next(name for name, w in LINKS.items() if w == link)),
        *choice("bytes", "g", {"bf16: 2 bytes": 2, "fp32: 4 bytes": 4}, "bf16: 2 bytes"),
    )  # fmt: skip
    return Calculator(
        style(chart).properties(height=90, width=520),
        f"A step as two lanes of bars over time. The upper lane computes forward and backward for "
        f"{tokens:,} tokens; the lower sends all gradients, and ends after the dashed line at "
        "which computing is over.",
    )
