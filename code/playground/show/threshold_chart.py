"""When gradients hide: one step of DDP on GPUs, with controls for T, C, W, and g.

The expressions are those of the chapter *Overlap*: the forward pass takes 2ΨT/C, the backward pass
4ΨT/C, and sending 2gΨ/W. Sending starts when one layer's gradients are ready. The last layer's part
of it can't start before the backward pass is over. Ψ stretches all bars by the same factor.
"""

import altair as alt

from playground.show.calculator import Calculator, slider, style
from playground.show.chart import choice
from playground.show.colours import KINDS

BILLIONS, LAYERS = 1.5, 48  # a model that plain DDP can train on a GPU of 80 GB
LINKS = {  # GB/s per host; a port has 400 Gbit/s if its name doesn't say otherwise
    "eight ports at 80 %: 320 GB/s": 320.0,
    "eight ports, line rate: 400 GB/s": 400.0,
    "one port at 80 %: 40 GB/s": 40.0,
    "one port, line rate: 50 GB/s": 50.0,
    "100 Gbit/s at 80 %: 10 GB/s": 10.0,
    "NVLink at 80 %: 360 GB/s": 360.0,
}
LANES = ["computes", "sends"]


def threshold_chart(tokens: int = 4096, teraflops: int = 400, link: float = 320.0) -> Calculator:
    """The bars of one step, and the number of tokens from which its messages hide."""
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
            " + format(tokens, ',') + ' you wait '"
            " + format(datum.waits, datum.waits < 10 ? '.1f' : ',.0f') + ' ms'"
            " + (datum.waits > 1.001 * datum.alone ? '' : ' for the last message')"
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
        *choice("link", "W, per host", LINKS, next(name for name, w in LINKS.items() if w == link)),
        *choice("bytes", "g", {"bf16: 2 bytes": 2, "fp32: 4 bytes": 4}, "bf16: 2 bytes"),
    )  # fmt: skip
    return Calculator(
        style(chart).properties(height=90, width=520),
        f"A step as two lanes of bars over time. In the upper lane, {tokens:,} tokens go forward "
        "and backward. In the lower lane, all gradients are sent, and the last message ends after "
        "the dashed line, where computing is over.",
    )
