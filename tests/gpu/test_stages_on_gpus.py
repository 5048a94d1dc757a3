"""The stages of code/scripts under torchrun where there are GPUs: `make test-gpu`."""

import re
import subprocess
import sys

import pytest
import torch

from playground.lab.one_host import SCRIPTS

GPUS = torch.cuda.device_count()
STAGES = ("ddp", "accumulate", "mixed", "fsdp", "compiled")
COUNTS = [
    1,
    pytest.param(2, marks=pytest.mark.skipif(GPUS < 2, reason=f"two GPUs wanted, {GPUS} found")),
]
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", COUNTS)
def test_a_stage_learns_over_nccl_what_one_gpu_learns(stage: str, ranks: int, tmp_path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    folder = [str(tmp_path)] if stage in ("fsdp", "compiled") else []
    many = [*start, "--nproc-per-node", str(ranks), str(SCRIPTS / f"{stage}.py"), *folder]
    said = subprocess.check_output(many, text=True, timeout=600)
    alone = subprocess.check_output([sys.executable, SCRIPTS / "single.py"], text=True, timeout=300)
    assert said.startswith(f"{ranks} ranks · nccl · ")
    found, expected = (list(map(float, re.findall(r"loss (\S+)", text))) for text in (said, alone))
    assert found == pytest.approx(expected, rel=0.06)
