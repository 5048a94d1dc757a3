"""Check one submission: `python -m playground.exercises.check NAME FILE [--json]`.

FILE is the starter of the exercise NAME, with a student's lines in it. The exit status is 0 where
the answer is right, 1 where it is wrong, and 2 where the call makes no sense. The last line on
stdout is the verdict; what the submission prints goes to stderr.

The submission runs in a process of its own, which hands its answer to the checker; it passes only
by what the checker finds. It is kept from nothing else: it can read, write and send what you can,
and someone who knows this file can forge a verdict. Run it in a container, alone.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playground.exercises import check as checking
from playground.exercises import names
from playground.exercises.check import Verdict

UNCHECKED = "It ended before it came to check(…), the last line of the starter."
IN_ITS_PROCESS = """
import sys
from playground.exercises.submission import report
report(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m playground.exercises.check",
        description="Check one submission: 0 right, 1 wrong, 2 a call that makes no sense.",
    )
    parser.add_argument("name", help="the exercise")
    parser.add_argument("file", type=Path, help="its starter, with a student's lines in it")
    parser.add_argument("--json", action="store_true", help="the verdict as one line of JSON")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for all (120)")
    given = parser.parse_args(arguments)
    problem = ""
    if given.name not in names():
        problem = f"name={given.name!r}: choose from {', '.join(names())}"
    elif not given.file.is_file():
        problem = f"file={str(given.file)!r}: there is no such file"
    elif not given.timeout > 0:
        problem = f"timeout={given.timeout:g}: give more than 0 seconds"
    if problem:
        parser.exit(2, f"{parser.prog}: error: {problem}\n")
    verdict = checked(given.name, given.file.resolve(), given.timeout)
    if given.json:
        print(json.dumps(as_row(verdict, given.file.resolve())))
    else:
        print(verdict)
    return 0 if verdict.passed else 1


def checked(name: str, file: Path, timeout: float) -> Verdict:
    """The verdict on a submission that runs in a process of its own, of which nothing is left."""
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", IN_ITS_PROCESS, name, str(file), str(told.fileno())],
            pass_fds=[told.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is the verdict's alone
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Verdict(name, False, f"It does not end within {timeout:g} s: stopped.")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its ranks, and whatever it started
            process.wait()
        told.seek(0)
        try:
            passed, message = json.load(told)
        except ValueError:  # nothing was told
            return Verdict(name, False, UNCHECKED)
        return Verdict(name, passed is True, str(message))


def report(name: str, file: str, to: int) -> None:
    """In the submission's process: write the verdict to the file descriptor `to`, and end."""
    verdict = verdict_on(name, Path(file))
    with open(to, "w") as told:
        json.dump([verdict.passed, verdict.message], told)
    sys.stdout.flush()
    os._exit(0)  # whatever threads the submission has left


def verdict_on(name: str, file: Path) -> Verdict:
    """Run a submission, take what it gives to `check`, and check that.

    Its own call checks nothing: the verdict comes after its last line, with cases drawn anew.
    """
    given: list[tuple[str, tuple[Any, ...]]] = []

    def take(name: str, *answer: Any, seed: int | None = None) -> Verdict:
        given.append((name, answer))
        return Verdict(name, False, "The verdict comes when the file has ended.")

    check, checking.check = checking.check, take
    try:
        code = compile(file.read_bytes(), str(file), "exec")
        exec(code, {"__name__": "__main__", "__file__": str(file)})
    except SystemExit:
        pass  # what was given before counts
    except BaseException as error:
        line = checking.line_of(error)
        return Verdict(name, False, f"{type(error).__name__}: {error}{line}")
    finally:
        checking.check = check
    if not given:
        return Verdict(name, False, UNCHECKED)
    exercise, answer = given[-1]
    if exercise != name:
        return Verdict(name, False, f"It is an answer to {exercise!r}, not to {name!r}.")
    return check(name, *answer)


def as_row(verdict: Verdict, file: Path) -> dict[str, Any]:
    """The verdict as JSON has it; `rank` and `line` are None where the message has none."""
    message = verdict.message
    place = rf'{re.escape(str(file))}(?:", line |:)'
    return {
        "exercise": verdict.name,
        "passed": verdict.passed,
        "message": message,
        "rank": _number(r"\brank (\d+)", message),
        "line": _number(rf"(?:\bat line |{place})(\d+)", message),
    }


def _number(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message)
    return int(found[1]) if found else None
