"""Every module that shows itself runs as a script, from a folder that is not the book's."""

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = sorted((Path(__file__).parents[1] / "code/distributed").glob("[!_]*.py"))
SCRIPTS = [path for path in MODULES if 'if __name__ == "__main__"' in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs_and_its_checks_hold(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout, "a main shows something"
    assert not [*tmp_path.iterdir()], "a script leaves no file"
