"""What was run on GPUs, and where: a file to keep, and an error for a run that tested nothing."""

import json
from pathlib import Path

import pytest
import torch

from playground.environment import environment

ROOT = Path(__file__).parents[2]
NOTE = ROOT / "_build/gpu.json"  # `make gpu-day` copies it to bench/recorded, and the book says so


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not reporter or session.config.option.collectonly:
        return
    passed, failed, skipped = (
        [one for one in reporter.stats.get(how, []) if "tests/gpu/" in one.nodeid]
        for how in ("passed", "failed", "skipped")
    )
    if skipped and not passed and not failed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # else it would look like success
        reporter.write_line("nothing was tested on a GPU: each test says above what it lacked")
    if passed and torch.cuda.is_available():
        said = environment() | {
            "gpus": torch.cuda.device_count(),
            "passed": len(passed),
            "failed": len(failed),
            "skipped": len(skipped),
        }
        NOTE.parent.mkdir(exist_ok=True)
        NOTE.write_text(json.dumps(said, indent=1) + "\n")
