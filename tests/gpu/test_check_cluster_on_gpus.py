"""code/scripts/check_cluster.py where there are GPUs: to its end over NCCL. `make test-gpu`."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch

from playground.lab.one_host import SCRIPTS

GPUS = torch.cuda.device_count()
SCHEMA = json.loads((SCRIPTS / "check_cluster.schema.json").read_text())
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter"}


def test_it_comes_to_its_end_over_nccl(tmp_path: Path) -> None:
    """Whether this machine is well is not tested: that all of it was measured is."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--nproc-per-node", str(GPUS), str(SCRIPTS / "check_cluster.py")]
    words = ["--json", str(tmp_path / "report.json"), "--shared", str(tmp_path)]
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=600)
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["finished"], done.stdout + done.stderr
    assert report["backend"] == "nccl"
    assert len(report["ranks"]) == GPUS
    assert report["seconds"] < 300
    assert all(one["flops"] > 1e12 for one in report["found"]["matmul"])
    health = next(one for one in report["ranks"] if one["local_rank"] == 0)["health"]
    assert len(health["gpus"]) >= GPUS, "nvidia-smi was asked"
    if GPUS > 1:
        found = report["found"]["collectives"]
        assert {one["name"] for one in found} == COLLECTIVES
        assert all(one["right"] for one in found)
