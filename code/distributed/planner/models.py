"""Models by name: presets with their shapes, most of them as their published `config.json` has it.

`configs.json` has the fields of those files, where they are published, and how many parameters the
publisher, or a library that loads the weights, counts. `shapes.PRESETS` has models that papers
describe. A name is a preset's, or its repository's: "Qwen/Qwen3-8B" is qwen3-8b.
"""

import json
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from distributed.planner.config_json import Read, read_config, read_fields
from distributed.planner.shapes import PRESETS, Model
from distributed.runtime.script import run_script

SHAPE = "layers,width,heads,kv,ffn,vocab"


def published() -> dict[str, dict[str, Any]]:
    """Name → repository, source, config, parameters, those active, and who counted them."""
    text = files("distributed.planner").joinpath("configs.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return models


PUBLISHED = published()
MODELS: dict[str, Model] = PRESETS | {
    name: read_fields(known["config"]).model for name, known in PUBLISHED.items()
}
REPOSITORIES = {known["repository"].lower(): name for name, known in PUBLISHED.items()}


def model_named(name: str) -> Read:
    """A preset by its name, or its repository's; else a `config.json`, or a folder with one.

    Raises ValueError with what to give instead.
    """
    key = name.lower().replace("_", "-").replace(" ", "-")
    key = REPOSITORIES.get(name.lower(), key)
    if key in MODELS:
        return Read(MODELS[key])
    if name and (Path(name).exists() or name.endswith(".json")):
        return read_config(name)
    way = "give the path of the model's config.json, or its --shape"
    if "/" in name:
        way = f"download its config.json and give the path of that, or give its --shape {SHAPE}"
    near = get_close_matches(key, MODELS, n=3, cutoff=0.4)
    rest = f"; presets with a name like it: {', '.join(near)}" if near else ""
    raise ValueError(f"model={name!r} is not a preset: {way}{rest}")


def main(context: int = 4096) -> None:
    """Presets from config files: billions of parameters, those active, and GFLOP per token."""
    print(f"{'':17}{'billion':>9}{'active':>8}{'GFLOP':>8}  per token, {context:,} in a row")
    for name, known in PUBLISHED.items():
        model = MODELS[name]
        numbers = f"{model.parameters / 1e9:9.2f}{model.active / 1e9:8.2f}"
        print(f"{name:17}{numbers}{model.flops(context) / 1e9:8.1f}")
        assert abs(model.parameters / known["parameters"] - 1) < 0.005


if __name__ == "__main__":
    run_script(main)
