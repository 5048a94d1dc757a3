"""Training by code/scripts/train.py in warm ranks, with faults."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_training import SMALL, write_tokens

from playground.lab.one_host import SCRIPTS, as_module, torchrun


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of tokens."""
    return write_tokens(tmp_path_factory.mktemp("tokens"))


PATIENCE = 300  # s; one or two beside nothing else, and a slow machine is not a failure
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
        return torchrun(lambda: train_with(faults, *given), ranks=ranks, timeout=PATIENCE)

    return start
