"""Error feedback as a chart to step through: which part of a gradient is sent and which is kept."""

from collections.abc import Callable

import altair as alt
import torch

from playground.show.chart import Calculator, slider, style
from playground.show.colours import RANKS

PARTS = ["sent", "kept for the next step"]


def feedback_chart(
    send: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    gradients: list[torch.Tensor],
    k: int,
) -> Calculator:
    """One bar for each element of gradient + memory; the k that `send` chooses are colored."""
    memory, rows = torch.zeros_like(gradients[0]), []
    for step, gradient in enumerate(gradients, start=1):
        sent = send(gradient.clone(), memory, k)
        for i, (went, kept) in enumerate(zip(sent.tolist(), memory.tolist(), strict=True)):
            part = PARTS[went == 0]
            rows.append({"step": step, "element": i, "size": went or kept, "part": part})
    bars = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter("datum.step == step")
        .mark_bar(size=22)
        .encode(
            x=alt.X("element:O", axis=alt.Axis(title="element", labelAngle=0)),
            y=alt.Y(
                "size:Q",
                title="gradient + memory",
                scale=alt.Scale(domain=[-4, 4]),
            ),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=PARTS, range=[RANKS[0], RANKS[7]]),
                legend=alt.Legend(title=None, orient="top"),
            ),
        )
    )
    steps = slider("step", "step", (1, len(gradients), 1), 1, "'' + step")
    chart = alt.layer(bars).add_params(*steps)
    return Calculator(
        style(chart),
        f"Bars of {len(gradients[0])} elements of a gradient in its first step. The {k} longest "
        "are sent, and the others are kept.",
    )
