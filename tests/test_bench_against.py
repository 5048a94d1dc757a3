"""Two checkouts in turns: what `python -m bench --against COMMIT` compares and leaves behind."""

import subprocess

import pytest
from bench import against

BENCH = """import json, pathlib, sys
if "broken" in {seconds!r}:
    sys.exit("no such pair")
pathlib.Path("_build").mkdir(exist_ok=True)
row = {{"id": sys.argv[-1], "ours_s": float({seconds!r})}}
pathlib.Path("_build/bench.json").write_text(json.dumps([row]))
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Three commits, whose bench takes 4 s, breaks, and takes 2 s."""
    monkeypatch.setattr(against, "ROOT", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/__init__.py").touch()
    who = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for seconds in ("4", "broken", "2"):
        (tmp_path / "bench/__main__.py").write_text(BENCH.format(seconds=seconds))
        against.git("add", "bench")
        against.git(*who, "commit", "-qm", seconds)
    return tmp_path


def test_each_row_is_the_earlier_commits_time_by_ours(repository):
    rows = list(against.compare_commits("HEAD~2", ["a/b", "c/d"], pairs=2))
    assert [(row["id"], row["ratio"], row["ours_s"], row["pairs"]) for row in rows] == [
        ("a/b", 2.0, 2.0, 2),
        ("c/d", 2.0, 2.0, 2),
    ]
    assert len(against.git("worktree", "list").splitlines()) == 1


def test_a_commit_that_is_not_there_or_lacks_the_row_is_named_and_nothing_is_left(repository):
    with pytest.raises(ValueError, match="--against nonesuch: git knows no such commit here"):
        list(against.compare_commits("nonesuch", ["a/b"], pairs=1))
    with pytest.raises(ValueError, match="a/b doesn't run in old: no such pair"):
        list(against.compare_commits("HEAD~1", ["a/b"], pairs=1))
    assert len(against.git("worktree", "list").splitlines()) == 1
