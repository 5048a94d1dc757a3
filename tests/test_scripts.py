"""Every module of `code/distributed` runs as a script, from a folder that is not the book's."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "code/distributed").glob("[!_]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs_and_its_checks_hold(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if 'if __name__ == "__main__"' in script.read_text():
        assert done.stdout, "a main shows something"
    assert not [*tmp_path.iterdir()], "a script leaves no file"
