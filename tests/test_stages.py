"""The stages of code/scripts: on several ranks each learns what one device learns.

They run in warm ranks whose environment is torchrun's; torchrun itself starts them in slow tests.
"""

import ast
import dataclasses
import os
import re
import subprocess
import sys
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from distributed import Group, launch
from playground.lab.one_host import SCRIPTS, as_module, run_as_rank, torchrun

STAGES = ("ddp", "accumulate", "mixed", "fsdp", "compiled")
EXACT = MixedPrecisionPolicy()  # no other precision than the model's


def run(stage: str, *args: str, ranks: int, **names: Any) -> list[float]:
    """A stage's losses, which must be equal on all ranks, without rounding that can be seen."""
    script = f"code/scripts/{stage}.py"
    first, *others = torchrun(script, *args, ranks=ranks, dtype=torch.float64, **names)
    assert all(other == first for other in others)
    return first


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return run("single", ranks=1)


@pytest.mark.parametrize(
    ("stage", "ranks"), [("ddp", 4), pytest.param("accumulate", 2, marks=pytest.mark.slow)]
)
def test_replicas_learn_what_one_device_learns(stage: str, ranks: int, expected) -> None:
    assert run(stage, ranks=ranks) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_shards_learn_it_too_and_go_on_with_another_number_of_ranks(tmp_path, expected) -> None:
    given = {"PRECISION": EXACT, "ranks": 2}
    first = run("fsdp", str(tmp_path), EPOCHS=1, **given)
    then = run("fsdp", str(tmp_path), **given | {"ranks": 4})
    assert len(first) == len(then)
    assert first + then == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_half_of_the_bits_learn_nearly_the_same(tmp_path, expected) -> None:
    losses = torchrun("code/scripts/mixed.py", ranks=2)[0]
    assert losses == pytest.approx(expected, rel=0.06), "from other first weights, too"
    losses = torchrun("code/scripts/fsdp.py", str(tmp_path), ranks=2)[0]
    assert losses == pytest.approx(expected, rel=0.06)


@pytest.mark.slow
def test_compiled_blocks_learn_nearly_the_same(tmp_path, expected) -> None:
    losses = torchrun("code/scripts/compiled.py", str(tmp_path), ranks=2, timeout=400)[0]
    assert losses == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("stage", [pytest.param(s, marks=pytest.mark.slow) for s in STAGES])
def test_torchrun_starts_it_from_anywhere(stage: str, tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = [str(tmp_path / "run")] if stage in ("fsdp", "compiled") else []
    command = [sys.executable, *words, str(SCRIPTS / f"{stage}.py"), *folder]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    first, *epochs = done.stdout.splitlines()
    where = "nccl" if torch.cuda.device_count() >= 2 else "gloo · no GPU found, so on CPUs"
    assert first.startswith(f"2 ranks · {where}")
    assert [line.split(":")[0] for line in epochs] == ["epoch 0", "epoch 1"], "once, not twice"


def with_a_nan_on_rank_1(stage: str, folder: str) -> str:
    """How it ends when this happens in a step in the middle."""
    module = as_module(SCRIPTS / f"{stage}.py")
    forward, calls = module.Adder.forward, []

    def broken(self: Any, *given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        here = len(calls) == 20 and os.environ["RANK"] == "1"
        return forward(self, *given) * (torch.nan if here else 1)

    module.Adder.forward = broken
    with pytest.raises(SystemExit) as caught:
        module.main(folder)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fsdp", "compiled"])
def test_a_loss_that_is_not_finite_is_not_saved(stage: str, tmp_path: Path) -> None:
    said = torchrun(lambda: with_a_nan_on_rank_1(stage, str(tmp_path)), ranks=2, timeout=400)
    assert said == ["epoch 0: a loss is not finite, so nothing of it is saved"] * 2
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("stage", ["fsdp", pytest.param("compiled", marks=pytest.mark.slow)])
def test_without_its_folder_a_stage_says_how_it_is_started(stage: str) -> None:
    start = [sys.executable, str(SCRIPTS / f"{stage}.py")]
    done = subprocess.run(start, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1
    assert f"torchrun --nproc-per-node 8 {stage}.py RUN" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_imports_torch_its_model_and_nothing_of_this_book(script: Path) -> None:
    tree = ast.parse(script.read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    packages = {name.split(".")[0] for name in imported}
    optional = {
        "export": {"safetensors"},
        "make_tokens": {"tokenizers"},
        "weights": {"safetensors", "models"},
        "finetune": {"train", "models", "weights"},
        "sample": {"tokenizers", "models", "weights"},
    }
    allowed = {"torch", "model"} | optional.get(script.stem, set())
    assert packages <= allowed | set(sys.stdlib_module_names)


def test_no_rank_leaves_its_group_before_all_are_there(tmp_path: Path) -> None:
    """One that did closed a connection that another still made: "Connection closed by peer"."""
    here = tmp_path / "rank 0 is here"

    def enter(group: Group) -> bool:
        if group.rank == 0:
            time.sleep(1)
            here.touch()
        return run_as_rank(group, cloudpickle.dumps(lambda: here.exists()), (), {}, 0)

    assert launch(enter, ranks=2, device="cpu") == [True, True]


def test_a_stage_names_what_train_py_has_in_its_place() -> None:
    """Functions, methods and options: they are there under these names."""
    train = as_module(SCRIPTS / "train.py")
    options = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(train.Settings)}
    for stage in ("single", *STAGES):
        text = ast.get_docstring(ast.parse((SCRIPTS / f"{stage}.py").read_text()))
        _, about = str(text).split("train.py", maxsplit=1)
        for name in re.findall(r"`([A-Za-z_.]+)`", about):
            assert callable(attrgetter(name)(train)), f"{stage}: {name}"
        assert {*re.findall(r"(?<=[ `])--[a-z-]+", about)} - {"--nproc-per-node"} <= options, stage
        assert "`" in about, stage


def test_no_stage_has_loader_workers() -> None:
    """Theirs lived on for 21 minutes when a rank was killed."""
    for stage in ("single", *STAGES):
        assert "num_workers" not in (SCRIPTS / f"{stage}.py").read_text()
