"""What a test run that is killed leaves behind: nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import soon

from playground.server.limits import has_ended

SERVES = """
import sys, time
from pathlib import Path
from serving import running_server
with running_server(Path(sys.argv[1])) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_tests_that_started_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>A book</title>")
    tests = subprocess.Popen(
        [sys.executable, "-c", SERVES, tmp_path], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["code", "tests"])},
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert tests.stdout is not None
    server = psutil.Process(int(tests.stdout.readline()))
    try:
        tests.send_signal(number)
        tests.wait()
        assert soon(lambda: has_ended(server.pid))
    finally:
        tests.stdout.close()
        if server.is_running():
            server.kill()
