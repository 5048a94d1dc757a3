"""How long it takes to have ranks: `launch`, a warm world, and torchrun."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench.pairs import compare, seconds
from distributed import launch, world

SCRIPT = """
import torch
from distributed import launch
launch(lambda group: group.all_reduce(torch.ones(1)).item(), device="cpu")
"""


def one_all_reduce(group: Any) -> float:
    return group.all_reduce(torch.ones(1)).item()


def cases() -> Iterator[tuple[str, Callable[[bool], dict[str, Any]]]]:
    yield "launch/r4", launch_against_torchrun
    yield "world/call/r4", call_against_launch


def launch_against_torchrun(quick: bool) -> dict[str, Any]:
    """Four ranks up, one all-reduce, down."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", "4", str(script)]
        return compare(
            "launch/r4",
            lambda: seconds(lambda: launch(one_all_reduce, ranks=4, device="cpu")),
            "torchrun",
            lambda: seconds(lambda: subprocess.run(command, capture_output=True, check=True)),
            pairs=2 if quick else 7,
            ranks=4,
            size=4,
        )


def call_against_launch(quick: bool) -> dict[str, Any]:
    """One all-reduce by ranks that are up already."""
    with world(4, device="cpu") as run:
        return compare(
            "world/call/r4",
            lambda: seconds(lambda: run(one_all_reduce)),
            "launch",
            lambda: seconds(lambda: launch(one_all_reduce, ranks=4, device="cpu")),
            pairs=10 if quick else 50,
            ranks=4,
            size=4,
        )
