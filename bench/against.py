"""Two checkouts in turns: the times of this one next to those of an earlier commit.

The machine drifts by more than most changes cost, so each pair runs both within seconds of each
other, each in processes of its own. Only our side is compared: `ours_s` of the row.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.pairs import ROOT, summary


def git(*words: object) -> str:
    done = subprocess.run(
        ["git", "-C", ROOT, *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit, which is removed again."""
    try:
        found = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except (ValueError, IndexError):
        raise ValueError(f"--against {commit}: git knows no such commit here") from None
    with tempfile.TemporaryDirectory() as folder:
        git("worktree", "add", "--quiet", "--detach", Path(folder, "old"), found)
        try:
            yield Path(folder, "old")
        finally:
            git("worktree", "remove", "--force", Path(folder, "old"))


def ours_of(root: Path, name: str) -> float:
    """Seconds of our side of one row, measured by the bench of that checkout."""
    paths = os.pathsep.join(map(str, (root / "code", root)))
    command = [sys.executable, "-m", "bench", "--quick", "--only", name]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"{name} doesn't run in {root.name}: {why}")
    (row,) = json.loads((root / "_build/bench.json").read_text())
    return float(row["ours_s"])


def compare_commits(commit: str, names: list[str], pairs: int) -> Iterator[dict[str, Any]]:
    """One row per name; its ratio is the earlier commit's time ÷ this one's."""
    with checkout(commit) as old:
        for name in names:
            times = []
            for pair in range(pairs):
                roots = (ROOT, old) if pair % 2 else (old, ROOT)  # neither is always the first
                taken = {root: ours_of(root, name) for root in roots}
                times.append((taken[ROOT], taken[old]))
            yield summary(name, times, commit, 1, 0)
