"""HTML of the trace reader, written by the build: an area to drop files, and an example below."""

import json
from html import escape
from pathlib import Path

from distributed.planner.hardware import GPUS
from distributed.planner.shapes import PRESETS
from playground.planner.measured_cases import recorded
from playground.trace_reader.answer import Reading

TRACES = Path(__file__).parents[3] / "book/_static/traces"
EXAMPLES = {  # example on the page → its files
    "Python is too slow (2 × A100)": ["resnet-2-a100"],
    "a message for each tensor (2 × V100)": ["small-messages-2-v100"],
    "hardly anything lost (1 × V100)": ["resnet-1-v100"],
    "an exchange that isn't hidden (2 of 128 ranks)": [
        "recommender-128-rank-0",
        "recommender-128-rank-1",
    ],
    "a slow rank (2 CPUs)": ["slow-rank-0", "slow-rank-1"],
    "a starved loader (2 CPUs)": ["slow-loader-0", "slow-loader-1"],
}
GPU_DAY = {"one step of FSDP2": "gpu-day-fsdp2", "one step of DDP": "gpu-day-ddp"}


def examples() -> dict[str, list[str]]:
    """All examples, with the traces of `bench.gpu_day` if they have been recorded."""
    found = recorded("traces")
    there = {said: name for said, name in GPU_DAY.items() if found and path(name).exists()}
    return EXAMPLES | {f"{said} (1 × {found['env']['gpu']})": [there[said]] for said in there}


def path(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


def files() -> list[Path]:
    """Files of all examples."""
    return [path(name) for names in examples().values() for name in names]


def read(names: list[str], root: str) -> str:
    """HTML of the result for one example."""
    reading = Reading(root)
    for name in names:
        reading.begin(f"{name}.json.gz")
        wrong = reading.feed(path(name).read_bytes()) or reading.end()
        assert not wrong, wrong
    return json.loads(reading.answer("{}"))["html"]


def field(name: str, label: str, hint: str, options: list[str] | None = None) -> str:
    about = f'id="traces-{name}" name="{name}" type="text" spellcheck="false" placeholder="{hint}"'
    known = f' list="traces-{name}-known"' if options else ""
    offered = "".join(f'<option value="{each}">' for each in options or [])
    offered = f'<datalist id="traces-{name}-known">{offered}</datalist>' if options else ""
    return (
        f'<div class="traces-field"><label for="traces-{name}">{label}</label>'
        f"<input {about}{known}>{offered}</div>"
    )


def page(root: str) -> str:
    """The whole page, with the first example's result; `root` is the path to the book's root."""
    first = next(iter(EXAMPLES.values()))
    buttons = "".join(
        f'<button type="button" data-example="{" ".join(names)}" '
        f'aria-pressed="{"true" if names is first else "false"}">{escape(said)}</button>'
        for said, names in examples().items()
    )
    fields = (
        field("model", "model, or its parameters", "6.7e9", [*PRESETS])
        + field("tokens", "tokens, on one rank in one step", "8192")
        + field("context", "tokens of a sequence", "4096")
        + field("gpu", "GPU", "that of the trace", [*GPUS])
    )
    return (
        f'<div class="traces" role="region" aria-label="Read a trace" data-root="{root}">\n'
        '<form class="traces-form" autocomplete="off">\n'
        '<label class="traces-drop"><span><strong>Drop your traces here</strong>, of one rank or '
        "of all (.json, .json.gz), or choose files.</span>"
        "<span>They are read in this tab and never leave it.</span>"
        '<input type="file" multiple accept=".json,.gz"></label>\n'
        f'<p class="traces-examples"><span>Or look at</span> {buttons}</p>\n'
        "<details><summary>Your model, for the MFU</summary>"
        f'<div class="traces-fields">{fields}</div></details>\n'
        "</form>\n"
        '<p class="traces-status" role="status"></p>\n'
        f'<div class="traces-answer">{read(first, root)}</div>\n'
        "</div>\n"
    )
