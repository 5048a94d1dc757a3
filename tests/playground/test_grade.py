"""Grading from the command line: what one submission does costs its own grade only."""

import json
import shutil
from pathlib import Path

import pytest

from playground import grade
from playground.check import FOLDER

BAD = {
    "hangs": ("while True: pass", "does not end in time"),
    "forks": (
        "import os, time\nwhile True:\n    os.fork() or time.sleep(60)",
        "processes: stopped",
    ),
    "floods": ("while True: print('x' * 1000)", "printed more than 1,000,000 bytes"),
    "exits": ("import os\nos._exit(0)", "ended unchecked"),
    "leaves": (
        "import subprocess\nsubprocess.Popen(['sleep', '500'], start_new_session=True)",
        "ended unchecked",
    ),
    "is_no_python": ("def def", "ended unchecked"),
    "eats_memory": ("x = [bytearray(2**30) for _ in range(64)]", "ended unchecked"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_submission_costs_its_own_grade(name, tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "PROCESSES", 16)
    monkeypatch.setattr(grade, "MEMORY", 2**29)
    file = tmp_path / name / "ring_all_reduce.py"
    file.parent.mkdir()
    code, message = BAD[name]
    file.write_text(code)
    found = grade.grade(file, timeout=1.5)
    assert not found.passed
    assert message in found.message
    assert not left_behind(), "no process is left"


def left_behind() -> list[str]:
    """Processes that were started to be graded, and still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"GRADE_TO=" in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            pass
    return found


def test_a_class_is_graded_with_a_table_and_json(tmp_path, capsys):
    for student, answer in (("ada", "solution"), ("bob", "starter"), ("eve", "wrong_half")):
        (tmp_path / "in" / student).mkdir(parents=True)
        answer_file = FOLDER / "ring_all_reduce" / f"{answer}.py"
        shutil.copy(answer_file, tmp_path / "in" / student / "ring_all_reduce.py")
    grade.main([str(tmp_path / "in"), "--json", str(tmp_path / "out.json")])
    said = capsys.readouterr().out
    assert "1 of 3 are right" in said
    grades = {row["student"]: row for row in json.loads((tmp_path / "out.json").read_text())}
    assert {student: row["passed"] for student, row in grades.items()} == {
        "ada": True, "bob": False, "eve": False,
    }  # fmt: skip
    assert "NotImplementedError" in grades["bob"]["message"]
    assert "is missing" in grades["eve"]["message"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "no STUDENT/EXERCISE.py"),
        (
            lambda folder: (folder / "a").mkdir() or (folder / "a/star.py").touch(),
            "no such exercise",
        ),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(prepare, message, tmp_path, capsys):
    prepare(tmp_path)
    with pytest.raises(SystemExit) as ended:
        grade.main([str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
