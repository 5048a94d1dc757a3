"""What the scripts of a page compute without a page: each `*.test.js` beside this file, by Node."""

import subprocess
from pathlib import Path

import pytest

from playground.build.tab import node

HERE = Path(__file__).parent


@pytest.mark.parametrize("script", sorted(path.name for path in HERE.glob("*.test.js")))
def test_a_script_computes_what_it_should(script: str) -> None:
    done = subprocess.run(
        [node(), "--test", "--test-reporter=spec", HERE / script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
