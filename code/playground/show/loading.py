"""Chart of the host memory that loading a model takes, with controls, for three ways to load it."""

import altair as alt

from distributed.planner.shapes import PRESETS, Model
from playground.show.chart import Calculator, choice, slider, style
from playground.show.colours import RANKS

WAYS = ["every rank loads a copy", "rank 0 loads and sends", "every rank reads its shards"]
MODELS = {
    "Llama 3 8B": "llama-3-8b",
    "Llama 2 13B": "llama-2-13b",
    "Llama 3 70B": "llama-3-70b",
    "Llama 3 405B": "llama-3-405b",
}
BYTES = {"bf16": 2, "fp32": 4}
HOSTS = {f"{size:,} GB": size * 1e9 for size in (128, 256, 512, 1024, 2048)}


def host_bytes(model: Model, ranks: int, size: int) -> list[float]:
    """Bytes at the peak on a host with all `ranks`, by way, for `size` bytes per parameter.

    A copy is private memory of its process, unlike a file that is only mapped. Shards go to the
    GPUs. A rank that reads its own shards goes through the files tensor by tensor, so the ranks of
    a host have at most one whole tensor among them, here the embedding.
    """
    whole = model.parameters * size
    return [ranks * whole, whole, model.vocab_size * model.d * size]


def loading_chart(model: str = "Llama 3 8B", doublings: int = 3) -> Calculator:
    """A bar for each way, and a dashed line for the memory of the host."""
    numbers = {name: list(host_bytes(PRESETS[key], 1, 1)) for name, key in MODELS.items()}
    ranks = "pow(2, doublings)"
    base = (
        alt.Chart(alt.Data(values=[{"way": way, "number": i} for i, way in enumerate(WAYS)]))
        .transform_calculate(
            bytes=f"model[datum.number] * size * (datum.number == 0 ? {ranks} : 1)"
        )
        .transform_calculate(
            GB="datum.bytes / 1e9",
            said="datum.way + ': ' + format(datum.bytes / 1e9, ',.1f') + ' GB'"
            " + (datum.bytes <= memory ? '' : ', too much')",
        )
    )
    y = alt.Y("way:N", sort=WAYS, axis=None)
    x = alt.X("GB:Q", title="GB of host memory at the peak")
    bars = base.mark_bar(size=20, yOffset=10).encode(
        x=x,
        y=y,
        color=alt.Color("way:N", scale=alt.Scale(domain=WAYS, range=RANKS[:3]), legend=None),
        tooltip=["way:N", alt.Tooltip("GB:Q", format=",.1f")],
    )
    said = base.mark_text(dx=2, dy=-13, align="left").encode(x=alt.value(0), y=y, text="said:N")
    limit = alt.Chart(alt.Data(values=[{}])).transform_calculate(GB="memory / 1e9")
    line = limit.mark_rule(strokeDash=[6, 4]).encode(x="GB:Q")
    chart = alt.layer(bars, said, line).add_params(
        *slider("doublings", "GPUs per host", (0, 4, 1), doublings, f"format({ranks}, ',')"),
        *choice("model", "model", numbers, model),
        *choice("size", "dtype in memory", BYTES, "fp32"),
        *choice("memory", "host memory", HOSTS, "256 GB"),
    )
    found = host_bytes(PRESETS[MODELS[model]], 2**doublings, BYTES["fp32"])
    sizes = ", ".join(f"{n / 1e9:.1f} GB if {way}" for way, n in zip(WAYS, found, strict=True))
    return Calculator(
        style(chart).properties(height=170),
        f"Three bars for the host memory that loading {model} takes on {2**doublings} GPUs: "
        f"{sizes}. A dashed line at 256 GB is the memory of the host.",
    )
