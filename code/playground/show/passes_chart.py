"""Gradient accumulation as two charts: what a global batch consists of, and when it is sent.

The expressions are those of the chapter *Gradient accumulation*: B = N·k·b, a pass takes 6ΨT/C, and
a message takes 2gΨ/W. It can hide only behind the backward pass that sends it.
"""

import altair as alt

from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import KINDS, RANKS
from playground.show.threshold_chart import BILLIONS, LINKS

MOST = 8  # ranks, passes, and examples of a micro-batch
TERAFLOPS, GRADIENT = 400, 2  # of a rank; bytes of an element, in bf16
LANES = ["every pass: computes", "every pass: sends", "once: computes", "once: sends"]


def global_batch_chart(ranks: int = 4, passes: int = 4, examples: int = 2) -> Calculator:
    """All examples of a step: a lane for each rank, a box for each pass, and the one message."""
    rows = [
        {"rank": f"rank {rank}", "r": rank, "i": i, "e": e}
        for rank in range(MOST)
        for i in range(MOST)
        for e in range(MOST)
    ]
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter("datum.r < ranks && datum.i < passes && datum.e < examples")
        .transform_calculate(begin="datum.i + 0.06 + 0.88 * datum.e / examples")
        .transform_calculate(end="datum.begin + 0.88 / examples")
    )
    boxes = base.mark_bar(stroke="white", strokeWidth=1).encode(
        y=alt.Y("rank:N", sort=alt.SortField("r"), axis=alt.Axis(title=None, ticks=False)),
        x=alt.X(
            "begin:Q",
            scale=alt.Scale(domain=[0, MOST + 0.6]),
            axis=alt.Axis(title="passes over time", labels=False, ticks=False, grid=False),
        ),
        x2="end:Q",
        color=alt.Color("rank:N", scale=alt.Scale(range=RANKS), legend=None),
        tooltip=["rank:N"],
    )  # fmt: skip
    step = alt.Chart(alt.Data(values=[{}])).transform_calculate(
        sent="passes + 0.06",
        over="passes + 0.45",
        said="'B = N · k · b = ' + ranks + ' · ' + passes + ' · ' + examples + ' = '"
        " + ranks * passes * examples + ' examples, one all-reduce'",
    )
    message = step.mark_rect(color=KINDS["communication"]).encode(x="sent:Q", x2="over:Q")
    words = step.mark_text(align="left", fontWeight="bold", dy=-10).encode(
        x=alt.value(0), y=alt.value(0), text="said:N"
    )
    chart = alt.layer(boxes, message, words).add_params(
        *slider("ranks", "N, ranks", (1, MOST, 1), ranks, "ranks"),
        *slider("passes", "k, passes", (1, MOST, 1), passes, "passes"),
        *slider("examples", "b, examples", (1, MOST, 1), examples, "examples"),
    )
    return Calculator(
        style(chart).properties(height=150, width=520),
        f"A lane for each of {ranks} ranks, with {passes} boxes one after the other, each of "
        f"{examples} examples: {ranks * passes * examples} in all. After the last box, one message "
        "over all lanes.",
    )


def accumulation_chart(passes: int = 4, tokens: int = 2500, link: float = 40.0) -> Calculator:
    """A step of several passes: gradients sent in each of them, and once, with no_sync."""
    rows = [{"lane": lane, "i": i} for lane in LANES for i in range(2 * MOST)]
    compute = f"(6 * {BILLIONS} * tokens / {TERAFLOPS})"  # ms: 10⁹ parameters, 10¹² FLOP/s
    first, send = f"({compute} / 3)", f"({2 * GRADIENT * BILLIONS * 1000} / link)"
    period = f"max({compute}, {first} + {send})"
    begin = (
        f"datum.lane == '{LANES[0]}' ? datum.i * {period} : "
        f"datum.lane == '{LANES[1]}' ? datum.i * {period} + {first} : "
        f"datum.i * {compute} + (datum.lane == '{LANES[2]}' ? 0 : {first})"
    )
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter(
            f"datum.i < passes && (datum.lane != '{LANES[3]}' || datum.i == passes - 1)"
        )
        .transform_calculate(
            begin=begin, wide=f"indexof(datum.lane, 'computes') >= 0 ? {compute} : {send}"
        )
        .transform_calculate(
            end="datum.begin + datum.wide",
            kind="indexof(datum.lane, 'sends') >= 0 ? 'communication' : 'compute'",
        )
    )
    y = alt.Y("lane:N", sort=LANES, axis=alt.Axis(title=None, labelLimit=200, minExtent=135))
    bars = base.mark_bar(height=22, stroke="white", strokeWidth=0.7).encode(
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
        tooltip=[alt.Tooltip("begin:Q", format=",.0f"), alt.Tooltip("end:Q", format=",.0f")],
    )
    waits = alt.Chart(alt.Data(values=[{}])).transform_calculate(
        each=f"{period} / {compute} - 1",
        once=f"({period} / {compute} - 1) / passes",
    )
    words = (
        waits.transform_calculate(
            said="'per 100 ms of computing, you wait ' + format(100 * datum.each, '.0f')"
            " + ' ms, or ' + format(100 * datum.once, '.0f') + ' ms if you send once'"
        )
        .mark_text(align="left", fontWeight="bold", dy=-42)
        .encode(x=alt.value(-130), y=alt.value(0), text="said:N")
    )
    chart = alt.layer(bars, words).add_params(
        *slider("passes", "k, passes", (1, 2 * MOST, 1), passes, "passes"),
        *slider(
            "tokens", "T, tokens of a pass", (1000, 16_000, 500), tokens, "format(tokens, ',')"
        ),
        *choice("link", "W, per host", LINKS, next(name for name, w in LINKS.items() if w == link)),
    )  # fmt: skip
    return Calculator(
        style(chart).properties(height=150, width=430),
        f"A step of {passes} passes as bars over time. In the two upper lanes, each pass sends its "
        "gradients, and the next one begins when they have arrived. In the two lower lanes, each "
        "pass begins as soon as the one before ends, and only the last one sends.",
    )
