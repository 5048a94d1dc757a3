"""Something small for code/scripts/train.py: files of tokens, and a network of milliseconds."""

import os
import random
import runpy
from pathlib import Path
from typing import Any

from playground.lab.one_host import SCRIPTS, as_module

SMALL = ["--vocab=256", "--context=16", "--width=16", "--layers=2", "--heads=2"]
SMALL += ["--batch=12", "--micro=3", "--lr=1e-2", "--warmup=3"]
SMALL += ["--log-every=4", "--eval-every=6", "--eval-batches=2", "--save-every=5"]


def write_tokens(folder: Path) -> str:
    """Two files for training, and one for validation, of words in any order."""
    words, draw = ["all", "reduce", "the", "gradients", "of"], random.Random(0)
    make = runpy.run_path(str(SCRIPTS / "make_tokens.py"))["main"]
    for number in range(2):
        text = folder / f"text{number}.txt"
        text.write_text(" ".join(draw.choice(words) for _ in range(4000)))
        make([str(text)], str(folder))
        (folder / "train.bin").rename(folder / f"train_{number}.bin")
    return str(folder)


def train_with(faults: dict[str, Any], *words: str) -> tuple[str, Any]:
    """One rank: train.py's `main` with faults. "losses" and they, or "stop" and its line.

    (In a conftest it would be found or not, by which of them a rank's path names first.)
    """
    module = as_module(SCRIPTS / "train.py")
    for name, fault in faults.items():
        fault(module, int(os.environ["RANK"])) if callable(fault) else setattr(module, name, fault)
    try:
        return "losses", module.main(*words, signals=module.watch_signals())
    except module.Stop as stop:
        return f"stop {stop.status}", str(stop)
