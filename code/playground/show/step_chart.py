"""One step of DDP as a chart with controls: computation, messages, and the end of the step.

The chart's expressions are the formula of `distributed.runtime.trace.overlapped` for k buckets of
equal size. There, message i ends at max(ready[i], end[i − 1]) + m. If all messages take the same
time m and gradients become ready at a constant rate, that equals max(ready[1] + i·m, ready[i] + m):
either the messages have been queued since the first one, or each finds the link free. A test
compares the two.
"""

import altair as alt

from playground.show.calculator import Calculator, slider, style
from playground.show.colours import KINDS

FORWARD, BACKWARD = 200 / 3, 400 / 3  # ms
BYTES = 2.1e6  # of gradients, as in the lab with hosts
MOST = 32  # buckets
# In a ring of four ranks, each rank sends 2 · 3/4 of all bytes.
SEND_ALL = f"{1.5 * BYTES * 8 / 1e3} / link"  # ms; link is in Mbit/s
MESSAGE = f"(alpha + {SEND_ALL} / buckets)"
LANES = ["by hand: computes", "by hand: sends", "overlapped: computes", "overlapped: sends"]


def overlap_chart(buckets: int = 8, link: float = 100, latency: float | None = None) -> Calculator:
    """A step by hand and one with overlap, with sliders for the link and the number of buckets.

    With `latency` (ms), the latency of each message gets a third slider, which starts at that
    value.
    """
    rows = [
        {"lane": lane, "part": part, "i": i}
        for lane, part, count in (
            (LANES[0], "forward", 1),
            (LANES[0], "backward", 1),
            (LANES[1], "message", MOST),
            (LANES[2], "forward", 1),
            (LANES[2], "backward", 1),
            (LANES[3], "message", MOST),
        )
        for i in range(1, count + 1)
    ]
    computed = FORWARD + BACKWARD
    ready = f"({FORWARD} + {BACKWARD} * datum.i / buckets)"
    first = f"({FORWARD} + {BACKWARD} / buckets)"
    by_hand = f"{computed} + datum.i * {MESSAGE}"
    at_once = f"max({first} + datum.i * {MESSAGE}, {ready} + {MESSAGE})"
    ends = (
        f"datum.part == 'forward' ? {FORWARD} : datum.part == 'backward' ? {computed} : "
        f"datum.lane == '{LANES[1]}' ? {by_hand} : {at_once}"
    )
    begins = (
        f"datum.part == 'forward' ? 0 : datum.part == 'backward' ? {FORWARD} : "
        f"datum.end - {MESSAGE}"
    )
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter("datum.part != 'message' || datum.i <= buckets")
        .transform_calculate(end=ends)
        .transform_calculate(
            begin=begins, kind="datum.part == 'message' ? 'communication' : 'compute'"
        )
    )
    y = alt.Y("lane:N", sort=LANES, axis=alt.Axis(title=None, labelLimit=200, minExtent=155))
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
        tooltip=[
            "part:N",
            alt.Tooltip("begin:Q", format=".0f"),
            alt.Tooltip("end:Q", format=".0f"),
        ],
    )
    over = base.transform_aggregate(last="max(end)", groupby=["lane"]).transform_filter(
        "indexof(datum.lane, 'sends') >= 0"
    )
    over = over.transform_calculate(
        over=f"max(datum.last, {computed})",
        said=f"format(max(datum.last, {computed}), '.0f') + ' ms'",
    )
    said = over.mark_text(dy=-19, align="right", fontWeight="bold").encode(
        y=y, x="over:Q", text="said:N"
    )
    speed = slider("speed", "link", (1, 4, 0.05), _log10(link), "format(link, ',.0f') + ' Mbit/s'")
    many = slider("doublings", "buckets", (0, 5, 1), _log2(buckets), "buckets")
    wait = slider("alpha", "latency of a message", (0, 20, 0.5), latency or 0.0, "alpha + ' ms'")
    derived = (
        alt.param("link", expr="pow(10, speed)"),
        alt.param("buckets", expr="pow(2, doublings)"),
    )
    shown = latency is not None
    hidden = () if shown else (alt.param("alpha", value=0.0),)
    chart = alt.layer(bars, said).add_params(
        *derived, *hidden, *speed, *many, *(wait if shown else ())
    )
    return Calculator(
        style(chart).properties(height=170, width=520),
        "A step of training as bars over time, computation above communication. By hand, all "
        "messages follow the backward pass. Overlapped, they begin during the backward pass, and "
        "the step is over earlier.",
    )


def _log10(value: float) -> float:
    from math import log10

    return log10(value)


def _log2(value: int) -> int:
    return value.bit_length() - 1
