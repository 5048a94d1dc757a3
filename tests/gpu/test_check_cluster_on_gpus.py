"""code/scripts/check_cluster.py where there are GPUs: to its end over NCCL. `make test-gpu`."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from playground.lab.one_host import SCRIPTS

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it writes on all GPUs of this machine."""
    folder = tmp_path_factory.mktemp("check")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--nproc-per-node", str(GPUS), str(SCRIPTS / "check_cluster.py")]
    words = ["--json", str(folder / "report.json"), "--shared", str(folder)]
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=600)
    found = json.loads((folder / "report.json").read_text())
    assert found["finished"], done.stdout + done.stderr
    return found


def test_it_comes_to_its_end_over_nccl(report: dict[str, Any]) -> None:
    """Whether this machine is well is not tested: that all of it was measured is."""
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


def test_its_report_has_the_form_of_the_schema(report: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(report, json.loads((SCRIPTS / "check_cluster.schema.json").read_text()))
