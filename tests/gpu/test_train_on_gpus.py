"""code/scripts/train.py where there are GPUs: `make test-gpu`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from playground.lab.one_host import SCRIPTS

GPUS = torch.cuda.device_count()
COUNTS = [
    1,
    pytest.param(2, marks=pytest.mark.skipif(GPUS < 2, reason=f"two GPUs wanted, {GPUS} found")),
]
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")
SIZE = ["--vocab=256", "--context=64", "--width=256", "--layers=4", "--heads=4", "--batch=16"]
SIZE += ["--micro=4", "--lr=1e-3", "--warmup=5", "--log-every=1", "--eval-every=10"]
SIZE += ["--eval-batches=1", "--save-every=10"]


def records_of(tokens: str, run: Path, ranks: int, *words: str) -> dict[int, dict]:
    """What the log says of each step."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--nproc-per-node", str(ranks), str(SCRIPTS / "train.py"), tokens, str(run)]
    said = subprocess.check_output([*start, *SIZE, *words], text=True, timeout=600)
    assert said.startswith(f"{ranks} ranks · nccl · ")
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return {record["step"]: record for record in records if "loss" in record}


@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("how", [["--ddp"], ["--recompute"], ["--compile"]], ids=" ".join)
def test_it_learns_over_nccl_what_plain_shards_learn(how, ranks: int, tokens, tmp_path) -> None:
    expected = records_of(tokens, tmp_path / "plain", 1, "--steps=20")
    found = records_of(tokens, tmp_path / "other", ranks, "--steps=20", *how)
    assert found[1]["loss"] == pytest.approx(expected[1]["loss"], rel=1e-3)
    assert found[20]["loss"] == pytest.approx(expected[20]["loss"], rel=0.06)
    assert found[20]["loss"] < found[1]["loss"] / 2
    assert found[20]["peak_gib"] > 0


@pytest.mark.parametrize("ranks", COUNTS)
def test_it_goes_on_to_the_last_bit(ranks: int, tokens: str, tmp_path: Path) -> None:
    """With the steps of the rate's plan; a run is cut off by taking its last checkpoint away."""
    words = ["--steps=20", "--deterministic", "--dropout=0.1", "--keep=9"]
    expected = records_of(tokens, tmp_path, ranks, *words)
    (tmp_path / "latest").write_text("step-00000010")
    (tmp_path / "log.jsonl").unlink()
    again = records_of(tokens, tmp_path, ranks, *words)
    assert [*again] == [*range(11, 21)]
    assert {step: one["loss"] for step, one in again.items()} == {
        step: expected[step]["loss"] for step in again
    }
