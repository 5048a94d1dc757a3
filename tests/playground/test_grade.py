"""Grading from the command line: what one submission does costs its own grade only."""

import json
import shutil
from pathlib import Path

import pytest

from playground.exercises import FOLDER, grade

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
    # Nothing is written there, so none of it is taken: a process may not even ask for so much.
    "eats_memory": ("import mmap, time\nmmap.mmap(-1, 5 * 2**30, flags=mmap.MAP_PRIVATE)\n"
                    "time.sleep(60)", "ended unchecked"),
    "eats_memory_in_shares": ("import os, time\n[os.fork() for _ in range(2)]\n"
                              "x = b'x' * 40_000_000\ntime.sleep(60)",
                              "GB of memory, and 0.1 GB are allowed: stopped"),
    "fills_the_disk": ("import time\nfor i in range(9):\n"
                       "    open(str(i), 'wb').write(b'x' * 900_000)\ntime.sleep(60)",
                       "its files take more than 4 MB: stopped"),
    "makes_many_files": ("import time\n[open(str(i), 'w').close() for i in range(300)]\n"
                         "time.sleep(60)", "made more than 200 files: stopped"),
    "digs": ("import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",
             ""),
}  # fmt: skip
SMALLER = {
    "forks": ("PROCESSES", 16),
    "eats_memory_in_shares": ("MEMORY", 0.1e9),
    "fills_the_disk": ("FOLDER", 4e6),
    "makes_many_files": ("FILES", 200),
}  # the other limits are those that are shipped


@pytest.mark.parametrize("name", BAD)
def test_a_bad_submission_costs_its_own_grade(name, tmp_path, monkeypatch):
    if name in SMALLER:
        monkeypatch.setattr(grade, *SMALLER[name])
    file = tmp_path / name / "ring_all_reduce.py"
    file.parent.mkdir()
    code, message = BAD[name]
    file.write_text(code)
    found = grade.grade(file, timeout=1.5 if name == "hangs" else 20)
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


def put(verdict: str) -> str:
    return f"import os\nopen(os.environ['GRADE_TO'], 'w').write({verdict!r})"


def right(**other: object) -> str:
    return json.dumps({"exercise": "ring_all_reduce", "passed": True, "message": "Right."} | other)


# What may stand where the verdict should, and what is to be said of it.
VERDICTS = {
    "a pipe": ("import os\nos.mkfifo(os.environ['GRADE_TO'])", "ended unchecked"),
    "a folder": ("import os\nos.mkdir(os.environ['GRADE_TO'])", "ended unchecked"),
    "a link": ("import os\nos.symlink('/dev/zero', os.environ['GRADE_TO'])", "ended unchecked"),
    "no json": (put("{"), "ended unchecked"),
    "a list": (put("[]"), "ended unchecked"),
    "deep": (put("[" * 90_000), "ended unchecked"),
    "half of it": (put('{"passed": true}'), "ended unchecked"),
    "an empty message": (put(right(message=" \n")), "ended unchecked"),
    "a number": (put(right(passed=1)), "ended unchecked"),
    "too long": (put(right(message="x" * 200_000)), "ended unchecked"),
    "no letters": (put(right(passed=False, message="a\ud800\x1b[2J")), "a??[2J"),
    "another exercise": (put(right(exercise="shard_rows")), "checks 'shard_rows', and is an"),
    "a secret": ("import os\nassert 'SECRET' not in os.environ\n" + put(right()), "Right."),
}


def test_whatever_stands_for_a_verdict_the_rest_of_the_class_is_graded(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("SECRET", "the teacher's")
    for student, (code, _) in VERDICTS.items():
        (tmp_path / student).mkdir()
        (tmp_path / student / "ring_all_reduce.py").write_text(code)
    grade.main([str(tmp_path), "--timeout", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == f"1 of {len(VERDICTS)} are right"
    assert len(lines) == len(VERDICTS)
    for line, (student, (_, message)) in zip(lines, sorted(VERDICTS.items()), strict=True):
        assert line.startswith(student)
        assert message in line


def test_a_class_is_graded_with_a_table_and_json(tmp_path, capsys):
    answers = {"ada": "solution", "bob": "starter", "eve": "wrong_half"}
    files = {student: f"ring_all_reduce/{answer}.py" for student, answer in answers.items()}
    for student, file in (files | {"sly": "sampler_without_repetition/solution.py"}).items():
        (tmp_path / "in" / student).mkdir(parents=True)
        shutil.copy(FOLDER / file, tmp_path / "in" / student / "ring_all_reduce.py")
    grade.main([str(tmp_path / "in"), "--json", str(tmp_path / "out.json")])
    said = capsys.readouterr().out
    assert "1 of 4 are right" in said
    grades = {row["student"]: row for row in json.loads((tmp_path / "out.json").read_text())}
    assert {student: row["passed"] for student, row in grades.items()} == {
        "ada": True, "bob": False, "eve": False, "sly": False,
    }  # fmt: skip
    assert "NotImplementedError" in grades["bob"]["message"]
    assert "is missing" in grades["eve"]["message"]
    assert "checks 'sampler_without_repetition'" in grades["sly"]["message"]


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
