"""Jobs that are slow for one planted reason, run here: the reader of traces names it, each time."""

import subprocess
import sys
from pathlib import Path

import pytest

from distributed.read_trace.__main__ import read_file, traces_in
from distributed.read_trace.recordings import one_for_each_rank
from distributed.read_trace.verdict import judge

JOB = Path(__file__).with_name("slow_job.py")
REASONS = {"rank": "slow rank", "loader": "loader", "messages": "a message for each tensor"}


@pytest.mark.slow
@pytest.mark.parametrize("again", range(3))
@pytest.mark.parametrize("reason", REASONS)
def test_the_planted_reason_is_the_first_that_is_named(tmp_path, reason, again):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "--local-addr=127.0.0.1", str(JOB), reason, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    verdict = judge(one_for_each_rank([read_file(path) for path in traces_in([tmp_path])]))
    found = [(finding.cause, f"{finding.time / 1e3:.0f} ms") for finding in verdict.findings]
    assert found[0][0] == REASONS[reason], found
    if reason == "rank":
        assert verdict.late is not None
        assert verdict.late.rank == 1
