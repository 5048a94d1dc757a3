"""The workflows that try the book on other people's machines."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_actions_by_commit(path: Path) -> None:
    """A tag can be moved to other code; the comment says which one it was."""
    for line in path.read_text().splitlines():
        if "uses:" in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line


def git(where: Path, *words: str) -> str:
    return subprocess.check_output(["git", "-C", str(where), *words], text=True)


def test_what_a_workflow_offers_is_pushed_and_tested(tmp_path: Path) -> None:
    """By git, and a stand-in for GitHub's program that notes what it is asked."""
    clone, asked = tmp_path / "clone", tmp_path / "asked"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", tmp_path / "origin"], check=True)
    subprocess.run(["git", "clone", "-q", tmp_path / "origin", clone], check=True)
    for name in ("kept", "other"):
        (clone / name).write_text("before")
    git(clone, "add", ".")
    git(clone, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "First")
    git(clone, "push", "-q", "origin", "HEAD")
    (tmp_path / "gh").write_text(
        f'#!/bin/sh\necho "$1 $2" >>{asked}\n[ "$2" != list ] || cat {tmp_path}/open\n'
    )
    (tmp_path / "gh").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_WORKFLOW": "weekly"}

    def offer(already_open: int) -> list[str]:
        asked.write_text("")
        (tmp_path / "open").write_text(f"{already_open}\n")
        command = ["bash", str(ROOT / ".ci/offer"), "newer", "Take what is newer", "kept"]
        subprocess.run(command, cwd=clone, env=env, check=True)
        return asked.read_text().splitlines()

    (clone / "other").write_text("not asked for")
    assert offer(0) == []
    (clone / "kept").write_text("after")
    assert offer(0) == ["pr list", "pr create", "workflow run"]
    assert git(clone, "diff", "--name-only", "origin/main", "origin/newer") == "kept\n"
    git(clone, "checkout", "-q", "main", "--", ".")
    git(clone, "reset", "-q", "--hard", "origin/main")
    (clone / "kept").write_text("a week later")
    assert offer(1) == ["pr list", "workflow run"], "the one that is open is brought up to date"
    assert git(clone, "show", "origin/newer:kept") == "a week later"


def test_a_job_that_offers_may_do_all_that_it_takes() -> None:
    """To push, to open a pull request, and to start the tests on it, which must let it."""
    rights = dict.fromkeys(("contents", "pull-requests", "actions"), "write")
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    offering = [job for job in jobs if ".ci/offer" in json.dumps(job)]
    assert offering
    assert all(job["permissions"] == rights for job in offering)
    tests = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert "workflow_dispatch" in tests[True], "YAML takes `on` for a truth"
