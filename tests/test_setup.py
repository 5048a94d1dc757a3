"""`make` from a bare clone: what is missing is said in one line."""

import os
import re
import subprocess
import sys
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
    targets = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[0].split()
    listed = re.findall(r"^  make (\S+)", make(clone, "help").stdout, re.M)
    assert sorted(listed) == sorted(targets)


def test_without_a_python_it_says_which_one_is_needed(clone):
    done = make(clone, "book", "PYTHON=")
    assert done.returncode != 0
    assert said(done) == [
        "No Python 3.11, 3.12, 3.13 or 3.14 found: install one, "
        "or run make PYTHON=/path/to/python3.11"
    ]


def test_a_python_that_cannot_make_an_environment_is_named(clone):
    done = make(clone, "book", "PYTHON=false")
    assert done.returncode != 0
    assert said(done)[-1].startswith("Python could not create .venv: on Debian and Ubuntu install")


def test_a_step_that_ends_in_a_traceback_says_its_error(clone, tmp_path):
    """As Jupyter Book does, whose last lines are a frame with nothing in it."""
    says = [
        "Extension error:",
        "builtins.ExtensionError: one proof is lacking",
        "RuntimeError: ",
        "===",
        "",
    ]
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in says) + "exit 1\n")
    fails.chmod(0o755)
    line, _ = said(make(clone, "book", f"PYTHON={fails}"))
    assert line == "builtins.ExtensionError: one proof is lacking"


def fake_python(folder, pip):
    """A Python that makes environments whose pip is this line of Python."""
    packages = folder / "packages"
    (packages / "pip").mkdir(parents=True)
    (packages / "pip/__init__.py").touch()
    (packages / "pip/__main__.py").write_text(pip)
    environment = folder / "environment"  # with no other packages
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    wrapper = folder / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {environment}/bin/python "$@"\n')
    wrapper.chmod(0o755)
    (folder / "my programs").mkdir()
    fake = folder / "my programs/python3"
    fake.write_text(f"#!/bin/sh\nmkdir -p .venv/bin\nln -s {wrapper} .venv/bin/python\n")
    fake.chmod(0o755)
    return fake


def test_without_a_network_it_says_so(clone, tmp_path):
    fake = fake_python(tmp_path, "print('no route to host'); raise SystemExit(1)")
    done = make(clone, "book", f"PYTHON={fake}")
    assert done.returncode != 0
    assert said(done) == [
        "no route to host",
        "pip could not install a newer pip: check the network (details: _build/pip.log)",
    ]
    assert "no route to host" in (clone / "_build/pip.log").read_text()


def test_a_full_disk_is_found_before_any_package_is_installed(clone, tmp_path):
    fake = fake_python(tmp_path, "print('pip was called')")
    (tmp_path / "packages/sitecustomize.py").write_text(
        "import shutil\nfull = shutil.disk_usage('/')._replace(free=2e9)\n"
        "shutil.disk_usage = lambda path: full\n"
    )
    done = make(clone, "book", f"PYTHON={fake}", "TORCH=cpu")
    assert done.returncode != 0
    (line,) = said(done)
    assert re.fullmatch(rf"Less than \d GB free on the disk of {clone}: free some space", line)
    assert not (clone / "_build/pip.log").exists()


def test_a_finished_step_is_not_repeated():
    done = make(ROOT, "-q", ".venv/.installed-dev", "book/web/node_modules/.installed")
    assert done.returncode == 0, "make would install again what is installed"


@pytest.mark.parametrize("target", RUNS)
def test_one_command_installs_all_that_it_needs(clone, target):
    planned = make(clone, "-n", target).stdout
    steps = [
        planned.find(step)
        for step in ("python requirements/install.py\n", "npm ci", f"python -m {RUNS[target]}")
    ]
    assert -1 not in steps
    assert steps == sorted(steps)


def test_only_the_tests_of_everything_need_ray(clone):
    """It is large, and one engine of many: `make test` leaves it and what is slow out."""
    quick, everything = (make(clone, "-n", target).stdout for target in ("test", "test-all"))
    assert "requirements/all.txt" not in quick
    assert "requirements/all.txt" in everything
    assert '-m "not slow"' in quick
    assert "not slow" not in everything


@pytest.mark.slow
def test_the_tests_for_gpus_do_not_pass_where_pytorch_finds_none(clone, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (clone / ".venv").symlink_to(ROOT / ".venv")
    done = make(clone, "test-gpu", "-o", ".venv/.installed-dev")
    assert done.returncode != 0
    (line,) = said(done)
    assert "finds no CUDA GPU here, so no test ran" in line
    assert done.stdout == "", "no test is even looked for"
