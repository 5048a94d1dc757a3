"""`make` from a bare clone: what is missing is said in one line."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# the last thing that a target does
RUNS = {"test": "pytest", "test-all": "pytest", "serve": "playground.server"}


@pytest.fixture
def clone(tmp_path):
    """The files that git has, without .venv, node_modules and _build; in a path with a space."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            target = tmp_path / "a clone" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return tmp_path / "a clone"


def make(clone, *words, path=None):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    if path:
        environ["PATH"] = path
    return subprocess.run(
        ["/usr/bin/env", "make", *words], cwd=clone, capture_output=True, text=True, env=environ,
        timeout=60,
    )  # fmt: skip


def said(done) -> list[str]:
    """The lines on stderr that are not make's own."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]


def test_help_lists_the_targets(clone):
    done = make(clone, "help")
    assert done.returncode == 0
    for target in ("serve", "dev", "test", "test-all", "test-gpu", "book", "pdf", "lint", "clean"):
        assert f"make {target} " in done.stdout


def test_without_a_python_it_says_which_one_is_needed(clone):
    done = make(clone, "book", "PYTHON=")
    assert done.returncode != 0
    assert said(done) == [
        "No Python 3.11, 3.12 or 3.13 found: install one, or say make PYTHON=/path/to/python3.11"
    ]


def test_a_python_that_cannot_make_an_environment_is_named(clone):
    done = make(clone, "book", "PYTHON=false")
    assert done.returncode != 0
    assert said(done)[-1].startswith("Python could not make .venv: on Debian and Ubuntu install")


def test_without_a_network_it_says_so(clone, tmp_path):
    (tmp_path / "my programs").mkdir()
    fake = tmp_path / "my programs/python3"
    # makes an environment whose pip fails as pip does without network
    fake.write_text(
        "#!/bin/sh\nmkdir -p .venv/bin\n"
        "printf '#!/bin/sh\\necho no route to host; exit 1' > .venv/bin/pip\n"
        "chmod +x .venv/bin/pip\n"
    )
    fake.chmod(0o755)
    done = make(clone, "book", f"PYTHON={fake}")
    assert done.returncode != 0
    assert said(done)[-1].startswith("pip could not install requirements.txt: is there a network?")
    assert "no route to host" in (clone / "_build/pip.log").read_text()


def test_a_full_disk_is_found_before_anything_is_installed(clone, tmp_path):
    (tmp_path / "bin").mkdir()
    df = tmp_path / "bin/df"
    df.write_text("#!/bin/sh\necho header\necho /dev/x 100 90 10 90% /\n")
    df.chmod(0o755)
    done = make(clone, "book", path=f"{df.parent}:{os.environ['PATH']}")
    assert done.returncode != 0
    assert said(done) == ["Less than 3 GB free on this disk: make room"]
    assert not (clone / ".venv").exists()


def test_a_finished_step_is_not_repeated():
    done = make(ROOT, "-q", ".venv/.installed-dev", "node_modules/.installed")
    assert done.returncode == 0, "make would install again what is installed"


@pytest.mark.parametrize("target", RUNS)
def test_one_command_installs_all_that_it_needs(clone, target):
    planned = make(clone, "-n", target).stdout
    steps = [
        planned.find(step)
        for step in ("pip install --no-compile -r", "npm ci", f"python -m {RUNS[target]}")
    ]
    assert -1 not in steps
    assert steps == sorted(steps)


def test_only_the_tests_of_everything_need_ray(clone):
    """It is large, and one engine of many: `make test` leaves it and what is slow out."""
    quick, everything = (make(clone, "-n", target).stdout for target in ("test", "test-all"))
    assert "requirements-all.txt" not in quick
    assert "requirements-all.txt" in everything
    assert '-m "not slow"' in quick
    assert "not slow" not in everything


def test_the_tests_for_gpus_do_not_pass_where_pytorch_finds_none(clone, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (clone / ".venv").symlink_to(ROOT / ".venv")
    done = make(clone, "test-gpu", "-o", ".venv/.installed-dev")
    assert done.returncode != 0
    (line,) = said(done)
    assert "finds no CUDA GPU here: nothing was tested" in line
    assert done.stdout == "", "no test is even looked for"
