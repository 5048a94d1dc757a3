"""What was run on GPUs: a note for the record, and an error if nothing was tested."""

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NOTE = ROOT / "_build/gpu_day/tests.json"  # `bench.gpu_day` keeps it, and the book shows it
COUNTS = dict.fromkeys(("passed", "failed", "skipped"), 0)
FAILED: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts each test as it ends, so that a run that is cut short has its counts."""
    if "tests/gpu/" not in report.nodeid or (report.when != "call" and report.passed):
        return
    if report.failed:
        FAILED.append(report.nodeid)
    COUNTS[report.outcome] += 1
    if torch.cuda.is_available():
        NOTE.parent.mkdir(parents=True, exist_ok=True)
        found = COUNTS | {"failures": FAILED, "gpus": torch.cuda.device_count()}
        NOTE.write_text(json.dumps(found, indent=1) + "\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not reporter or session.config.option.collectonly:
        return
    if COUNTS["skipped"] and not COUNTS["passed"] + COUNTS["failed"]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # else it would look like success
        reporter.write_line("nothing was tested on a GPU: each test says above what it lacked")
