"""Tiny job for train.py, and faults that can happen to it: for *Starting jobs*, and for tests."""

import contextlib
import os
import random
import runpy
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from playground.lab.one_host import SCRIPTS, as_module

SMALL = ["--vocab=256", "--context=16", "--width=16", "--layers=2", "--heads=2"]
SMALL += ["--batch=12", "--micro=3", "--lr=1e-2", "--min-lr-share=0.006", "--warmup=3"]
SMALL += ["--log-every=4", "--eval-every=6", "--eval-batches=2", "--save-every=5"]
SHOWN = [*SMALL, "--log-every=5", "--eval-every=100", "--save-every=100"]  # few lines, for a page


def write_tokens(folder: str | Path) -> str:
    """A folder of two files for training, and one for validation, of words in any order."""
    words, draw, data = ["all", "reduce", "the", "gradients", "of"], random.Random(0), Path(folder)
    data.mkdir(exist_ok=True)
    make = runpy.run_path(str(SCRIPTS / "make_tokens.py"))["main"]
    for number in range(2):
        text = data / f"text{number}.txt"
        text.write_text(" ".join(draw.choice(words) for _ in range(4000)))
        with contextlib.redirect_stdout(None):  # it says where they are: in a folder of a minute
            make([str(text)], str(data))
        (data / "train.bin").rename(data / f"train_{number}.bin")
    return str(data)


def train_with(faults: Mapping[str, Any], *words: str) -> tuple[str, Any]:
    """One rank: train.py's `main` with faults. "losses" and they, or "stop" and its line.

    A fault is called with the script and the rank, or takes the place of what it names there.
    """
    script = as_module(SCRIPTS / "train.py")
    for name, fault in faults.items():
        fault(script, int(os.environ["RANK"])) if callable(fault) else setattr(script, name, fault)
    try:
        return "losses", script.main(*words, signals=script.watch_signals())
    except script.Stop as stop:
        return f"stop {stop.status}", str(stop)


def train(*words: str, sent: signal.Signals | None = None, at: int = 8) -> list[float] | str:
    """One rank of train.py: the losses of its steps, or its last line if it was told to end.

    Rank 1 gets the signal `sent` as it begins step `at`. Saves are waited for, because in steps of
    a millisecond it would be chance whether one is whole when a rank dies.
    """
    return train_with({"accident": accident(sent, at)}, *SHOWN, *words)[1]


def accident(sent: signal.Signals | None, at: int) -> Callable[[ModuleType, int], None]:
    def fault(script: ModuleType, rank: int) -> None:
        order, save = script.Tokens.order, script.Checkpoints.save

        def and_accident(self: Any, step: int) -> Any:
            if sent and step == at and rank == 1:
                os.kill(os.getpid(), sent)
            return order(self, step)

        def and_wait(self: Any, *given: Any) -> None:
            save(self, *given)
            self.saving.result()

        script.Tokens.order, script.Checkpoints.save = and_accident, and_wait

    return fault
