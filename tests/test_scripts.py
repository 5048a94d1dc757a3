"""Every module that shows itself runs as a script, from a folder that is not the book's.

Some are started as a reader starts them. The others run in forks of the process that forks ranks,
which has imported torch and has computed nothing: each would import torch anew otherwise. Those
that a page shows whole were run by it when its outputs were recorded, and are by `make outputs
CHECK=all`: here they run with all tests.
"""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from distributed.runtime.fork_server import fork_server
from playground.build.execute import live_pages, scripts_on_no_page

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "code/distributed").rglob("[!_]*.py"))
SCRIPTS = [path for path in MODULES if 'if __name__ == "__main__"' in path.read_text()]
PROCESSES = ("dp",)
ON_NO_PAGE = scripts_on_no_page(ROOT, live_pages(ROOT))
IN_FORKS = [
    pytest.param(path, id=path.stem, marks=() if path in ON_NO_PAGE else pytest.mark.slow)
    for path in SCRIPTS
    if path.stem not in PROCESSES
]
PATIENCE = 120  # s; long, because a slow machine is not a failure


def run_here(script: str, folder: str, out: str, err: str) -> None:
    """What `python -W error::DeprecationWarning:__main__ script` does in a folder."""
    os.chdir(folder)
    for number, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [script]
    sys.path.insert(0, os.path.dirname(script))
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"__main__\Z")
    runpy.run_path(script, run_name="__main__")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "an empty folder").mkdir()
    return tmp_path / "an empty folder"


@pytest.mark.parametrize("name", PROCESSES)
def test_it_runs_as_a_process_and_its_checks_hold(name: str, folder: Path) -> None:
    (script,) = [path for path in SCRIPTS if path.stem == name]
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", script],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout, "a main shows something"
    assert not [*folder.iterdir()], "a script leaves no file"


def run_in_a_fork(script: Path, folder: Path) -> tuple[int | None, str, str]:
    """Exit status, and what it printed to stdout and to stderr."""
    out, err = folder.parent / "out", folder.parent / "err"
    given = [str(path) for path in (script, folder, out, err)]
    process = fork_server().Process(target=run_here, args=given)
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, out.read_text(), err.read_text()


@pytest.mark.parametrize("script", IN_FORKS)
def test_it_runs_and_its_checks_hold(script: Path, folder: Path) -> None:
    status, out, err = run_in_a_fork(script, folder)
    assert status == 0, err
    assert out, "a main shows something"
    assert not [*folder.iterdir()], "a script leaves no file"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("assert 1 == 2, 'no sum'", 1, "AssertionError: no sum"),
        ("raise SystemExit('batch=0: 1 or more')", 1, "batch=0: 1 or more"),
        ("import warnings\nwarnings.warn('old', DeprecationWarning)", 1, "DeprecationWarning: old"),
    ],
)
def test_a_script_that_fails_does_not_pass(
    code: str, status: int, said: str, folder: Path, tmp_path: Path
) -> None:
    (script := tmp_path / "script.py").write_text(f"print('begun')\n{code}\nprint('ended')\n")
    found, out, err = run_in_a_fork(script, folder)
    assert (found, out) == (status, "begun\n")
    assert said in err


def test_a_command_that_needs_arguments_is_not_run_alone() -> None:
    assert ON_NO_PAGE
    assert not [path for path in ON_NO_PAGE if path.name == "__main__.py"]
