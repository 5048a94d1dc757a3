"""One submission, checked from the shell: exit status, verdict, and what cannot forge it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import soon

from playground.exercises import FOLDER
from playground.exercises.check import Verdict
from playground.exercises.submission import as_row, checked, main, verdict_on
from playground.server.limits import has_ended

EXERCISE = "sampler_without_repetition"  # needs no ranks
RIGHT = (FOLDER / EXERCISE / "solution.py").read_text()
FAKE = f"""print('{{"exercise": "{EXERCISE}", "passed": true, "message": "Right."}}')\n"""


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    return tmp_path / "ada.py"


def test_the_command_says_only_the_verdict_on_stdout(submission):
    submission.write_text("print('by the way')\n" + RIGHT)
    command = [sys.executable, "-m", "playground.exercises.check", EXERCISE, submission, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    row = json.loads(line)
    assert row.pop("message").startswith("Right: each example once an epoch")
    assert row == {"exercise": EXERCISE, "passed": True, "rank": None, "line": None}
    assert "by the way" in ran.stderr


def test_a_process_that_ends_before_its_verdict_is_wrong(submission, capfd):
    submission.write_text(FAKE + "import os\nos._exit(0)\n" + RIGHT)
    assert main([EXERCISE, str(submission)]) == 1
    (said,) = capfd.readouterr().out.splitlines()
    assert said.startswith("not yet: It ended before it came to check")


@pytest.mark.parametrize("code", [FAKE, FAKE + "import sys\nsys.exit(0)\n" + RIGHT])
def test_a_file_that_prints_a_verdict_and_gives_no_answer_is_wrong(code, submission):
    submission.write_text(code)
    verdict = verdict_on(EXERCISE, submission)
    assert not verdict.passed
    assert "ended before it came to check" in verdict.message


@pytest.mark.slow
def test_a_submission_without_end_is_stopped_with_what_it_started(submission, monkeypatch):
    started = submission.with_name("started")
    submission.write_text(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '500'])\n"
        f"open({str(started)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    run_it = "import sys\nexec(open(sys.argv[2]).read())"  # without torch: there in no time
    monkeypatch.setattr("playground.exercises.submission.IN_ITS_PROCESS", run_it)
    verdict = checked(EXERCISE, submission, timeout=5)
    assert (verdict.passed, verdict.message) == (False, "It does not end within 5 s: stopped.")
    assert soon(lambda: has_ended(int(started.read_text())))


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        ("def def", "SyntaxError: invalid syntax", None),
        ("x = 1\nx / 0\n", "ZeroDivisionError: division by zero\n  at line 2", 2),
        (RIGHT.replace(f'check("{EXERCISE}"', 'check("shard_rows"'), "an answer to 'shard_rows'",
         None),
    ],
    ids=["is no Python", "raises", "answers another exercise"],
)  # fmt: skip
def test_what_a_file_does_wrong_is_said(code, message, line, submission):
    submission.write_text(code)
    verdict = verdict_on(EXERCISE, submission)
    assert not verdict.passed
    assert message in verdict.message
    assert as_row(verdict, submission)["line"] == line


def test_a_lucky_seed_does_not_count(submission, monkeypatch):
    submission.write_text(RIGHT.replace("indices)\n", "indices, seed=7)\n"))
    monkeypatch.setattr("secrets.randbelow", lambda most: pytest.fail("drawn"))
    with pytest.raises(pytest.fail.Exception, match="drawn"):
        verdict_on(EXERCISE, submission)


@pytest.mark.parametrize(
    ("message", "rank", "line"),
    [
        ("x[0] on rank 2 (part 0): it is missing\n  Look at line 9: x.add_(y)", 2, 9),
        ("With 2 ranks, it never finishes. The ranks are here:\nrank 0 waits at {file}:11", 0, 11),
        ('With 3 ranks: rank 1 failed:\n  File "{file}", line 5, in answer', 1, 5),
        ("10 examples, 4 ranks: nothing is shuffled", None, None),
    ],
)
def test_rank_and_line_are_those_of_the_message(message, rank, line):
    file = Path("/in/ada.py")
    row = as_row(Verdict(EXERCISE, False, message.format(file=file)), file)
    assert (row["rank"], row["line"]) == (rank, line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["star", "FILE"], "name='star': choose from accumulate_without_sync, "),
        ([EXERCISE, "nowhere.py"], "file='nowhere.py': there is no such file"),
        ([EXERCISE, "FILE", "--timeout", "0"], "timeout=0: give more than 0 seconds"),
    ],
)
def test_a_call_without_sense_is_one_line_and_exit_status_2(arguments, message, submission, capsys):
    shutil.copy(FOLDER / EXERCISE / "solution.py", submission)
    with pytest.raises(SystemExit) as ended:
        main([str(submission) if word == "FILE" else word for word in arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
