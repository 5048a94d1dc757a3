"""When gradients hide: one step of DDP on GPUs, with controls for T, C, W, and g.

The expressions are those of the chapter *Overlap*: the forward pass takes 2ΨT/C, the backward pass
4ΨT/C, and sending 2gΨ/W. Each layer is one message, which leaves when the layer's gradients are
ready and the link is free: slivers if the network is faster, a solid block if it is slower, as in
`playground.show.step_chart`. Ψ stretches all bars by the same factor.
"""

import altair as alt

from playground.show.calculator import Calculator, slider, style
from playground.show.chart import choice
from playground.show.colours import KINDS

BILLIONS, LAYERS = 1.5, 48  # a model that plain DDP can train on a GPU of 80 GB
LINKS = {  # GB/s per host; a port has 400 Gbit/s if its name doesn't say otherwise
    "eight ports at 80%: 320 GB/s": 320.0,
    "eight ports, line rate: 400 GB/s": 400.0,
    "one port at 80%: 40 GB/s": 40.0,
    "one port, line rate: 50 GB/s": 50.0,
    "100 Gbit/s at 80%: 10 GB/s": 10.0,
    "NVLink at 80%: 360 GB/s": 360.0,
}
LANES = ["computes", "sends"]


def threshold_chart(tokens: int = 4096, teraflops: int = 400, link: float = 320.0) -> Calculator:
    """The bars of one step, and the number of tokens from which its messages hide."""
    rows = [
        {"lane": LANES[0], "part": "forward"},
        {"lane": LANES[0], "part": "backward"},
        *({"lane": LANES[1], "part": f"message {i}", "i": i} for i in range(1, LAYERS + 1)),
    ]
    forward = f"(2 * {BILLIONS} * tokens / speed)"  # ms: 10⁹ parameters by 10¹² FLOP/s
    backward, send = f"(2 * {forward})", f"(2 * bytes * {BILLIONS} / link * 1000)"
    first, over = f"({forward} + {backward} / {LAYERS})", f"({forward} + {backward})"
    message = f"({send} / {LAYERS})"
    waits_for_link = f"{first} + (datum.i - 1) * {message}"
    ready = f"{forward} + {backward} * datum.i / {LAYERS}"
    last_begins = f"max({over}, {first} + {LAYERS - 1} * {message})"
    hides = tokens > 1000 * teraflops / link  # in bf16, which the chart begins with
    gaps = "with a gap after each message" if hides else "without a gap"
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(
            begin=f"datum.part == 'forward' ? 0 : datum.part == 'backward' ? {forward} : "
            f"max({waits_for_link}, {ready})",
            wide=f"datum.part == 'forward' ? {forward} : datum.part == 'backward' ? {backward} : "
            f"{message}",
            kind=f"datum.lane == '{LANES[1]}' ? 'communication' : 'compute'",
        )
        .transform_calculate(end="datum.begin + datum.wide")
    )
    y = alt.Y("lane:N", sort=LANES, axis=alt.Axis(title=None, minExtent=60))
    sent = alt.value(KINDS["communication"])  # a white line would leave nothing of a sliver
    bars = base.mark_bar(height=26, strokeWidth=0.7).encode(
        y=y,
        stroke=alt.condition("datum.kind == 'communication'", sent, alt.value("white")),
        x=alt.X("begin:Q", title="time (ms)", scale=alt.Scale(domainMin=0, nice=True)),
        x2="end:Q",
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(
                domain=["compute", "communication"],
                range=[KINDS["compute"], KINDS["communication"]],
            ),
            legend=alt.Legend(title=None, orient="top", symbolStrokeWidth=0),
        ),
        tooltip=["part:N", alt.Tooltip("wide:Q", format=",.2~f", title="ms")],
    )
    done = alt.Chart(alt.Data(values=[{}])).transform_calculate(
        over=over,
        waits=f"{last_begins} + {message} - {over}",
        alone=message,
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
        f"and backward. In the lower lane, {LAYERS} messages are sent from the first layer of the "
        f"backward pass on, {gaps}, and the last one ends after the dashed line, where computing "
        "is over.",
    )
