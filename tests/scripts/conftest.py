"""Training by code/scripts/train.py in warm ranks, with faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playground.lab.one_host import torchrun
from playground.lab.rehearsal import SMALL, train_with

PATIENCE = 300  # s; one or two beside nothing else, and a slow machine is not a failure
Train = Callable[..., list[tuple[str, Any]]]


@pytest.fixture
def train(tokens: str, tmp_path: Path) -> Train:
    """Train on some ranks of this machine, in a folder of the test's own. What each rank says."""

    def start(*words: str, ranks: int = 2, data: str = tokens, run: str = "run", **faults: Any):
        given = [data, str(tmp_path / run), *SMALL, *words]
        return torchrun(lambda: train_with(faults, *given), ranks=ranks, timeout=PATIENCE)

    return start
