"""Files of tokens to train on, and a small network: a step takes milliseconds."""

import os
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playground.lab.one_host import SCRIPTS, as_module, torchrun

SMALL = ["--vocab=256", "--context=16", "--width=16", "--layers=2", "--heads=2"]
SMALL += ["--batch=12", "--micro=1", "--lr=1e-2", "--warmup=3"]
SMALL += ["--log-every=4", "--eval-every=6", "--eval-batches=2", "--save-every=5"]


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of two files for training and one for validation."""
    folder, words = tmp_path_factory.mktemp("tokens"), ["all", "reduce", "the", "gradients", "of"]
    draw = random.Random(0)
    make = runpy.run_path(str(SCRIPTS / "make_tokens.py"))["main"]
    for number in range(2):
        text = folder / f"text{number}.txt"
        text.write_text(" ".join(draw.choice(words) for _ in range(4000)))
        make([str(text)], str(folder))
        (folder / "train.bin").rename(folder / f"train_{number}.bin")
    return str(folder)


Train = Callable[..., list[tuple[str, Any]]]


def train_with(faults: dict[str, Any], *words: str) -> tuple[str, Any]:
    """One rank: train.py's `main` with faults. "losses" and they, or "stop" and its line."""
    module = as_module(SCRIPTS / "train.py")
    for name, fault in faults.items():
        fault(module, int(os.environ["RANK"])) if callable(fault) else setattr(module, name, fault)
    try:
        return "losses", module.main(*words, signals=module.watch_signals())
    except module.Stop as stop:
        return f"stop {stop.status}", str(stop)


@pytest.fixture
def train(tokens: str, tmp_path: Path) -> Train:
    """Train on some ranks of this machine, in a folder of the test's own. What each rank says."""

    def start(*words: str, ranks: int = 2, data: str = tokens, run: str = "run", **faults: Any):
        given = [data, str(tmp_path / run), *SMALL, *words]
        return torchrun(lambda: train_with(faults, *given), ranks=ranks)

    return start
