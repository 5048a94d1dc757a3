"""Check one submission: `python -m playground.exercises.check NAME FILE [--json]`.

FILE is the starter of the exercise NAME with a student's lines in it. The exit status is 0 if the
answer is right, 1 if it is wrong, and 2 if the command line is invalid. The last line on stdout is
the verdict. Everything that the submission prints goes to stderr.

The submission runs in a separate process, which passes its answer to the checker. Only the
checker's verdict counts. The process isn't a sandbox: it can read, write and send whatever you can,
and someone who knows this file can forge a verdict. Run it in a container with nothing else in it.
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
    """Command line; returns the exit status."""
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
    """Run a submission in a separate process; return its verdict. Then kill all its processes."""
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", IN_ITS_PROCESS, name, str(file), str(told.fileno())],
            pass_fds=[told.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # only the verdict may go to stdout
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Verdict(name, False, f"It does not end within {timeout:g} s: stopped.")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including its ranks and all other children
            process.wait()
        told.seek(0)
        try:
            passed, message = json.load(told)
        except ValueError:  # the process wrote no verdict
            return Verdict(name, False, UNCHECKED)
        return Verdict(name, passed is True, str(message))


def report(name: str, file: str, to: int) -> None:
    """In the submission's process: write the verdict to the file descriptor `to` and exit."""
    verdict = verdict_on(name, Path(file))
    with open(to, "w") as told:
        json.dump([verdict.passed, verdict.message], told)
    sys.stdout.flush()
    os._exit(0)  # don't wait for threads that the submission has started


def verdict_on(name: str, file: Path) -> Verdict:
    """Run a submission, record its calls of `check`, and check the answer of the last one.

    The submission's own call of `check` checks nothing. The verdict is made after its last line has
    run, with new random cases.
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
        pass  # an answer that was passed before the exit counts
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
    """The verdict's row in the JSON output; `rank` and `line` are None if its message has none."""
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
