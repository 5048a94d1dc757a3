"""A job of milliseconds for train.py, and what may happen to it: for *Starting jobs*."""

import contextlib
import os
import random
import runpy
import signal
from pathlib import Path
from typing import Any

from playground.lab.one_host import SCRIPTS, as_module

SMALL = ["--vocab=256", "--context=16", "--width=16", "--layers=2", "--heads=2", "--batch=12"]
SMALL += ["--micro=3", "--lr=1e-2", "--warmup=3", "--log-every=5", "--eval-every=100"]


def write_tokens(folder: str) -> str:
    """Files of tokens in a folder of their own, made by the script that is beside train.py."""
    words, draw, data = (
        ["all", "reduce", "the", "gradients"],
        random.Random(0),
        Path(folder, "data"),
    )
    data.mkdir()
    text = data / "text.txt"
    text.write_text(" ".join(draw.choice(words) for _ in range(4000)))
    with contextlib.redirect_stdout(None):  # it says where they are: in a folder of a minute
        runpy.run_path(str(SCRIPTS / "make_tokens.py"))["main"]([str(text)], str(data))
    return str(data)


def train(*words: str, sent: signal.Signals | None = None, at: int = 8) -> list[float] | str:
    """One rank of train.py: the losses of its steps, or its last line if it was told to end.

    Rank 1 gets the signal `sent` as it begins step `at`. Saves are waited for, because in steps of
    a millisecond it would be chance whether one is whole when a rank dies.
    """
    script = as_module(SCRIPTS / "train.py")
    order, save = script.Tokens.order, script.Checkpoints.save

    def and_accident(self: Any, step: int) -> Any:
        if sent and step == at and os.environ["RANK"] == "1":
            os.kill(os.getpid(), sent)
        return order(self, step)

    def and_wait(self: Any, *given: Any) -> None:
        save(self, *given)
        self.saving.result()

    script.Checkpoints.save = and_wait
    script.Tokens.order = and_accident
    try:
        return script.main(*words, *SMALL, signals=script.watch_signals())
    except script.Stop as stop:
        return str(stop)
