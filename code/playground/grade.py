"""Grade a folder of submissions: `python -m playground.grade submissions/ [--json grades.json]`.

A submission is submissions/STUDENT/EXERCISE.py: the starter of the exercise, with the student's
lines in it. Each runs by itself, with limits of time, processes, memory and output; one that hangs,
forks, floods or exits costs its own grade only. Whoever wants to forge a verdict can: this is for
teachers who read what they grade.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from playground.check import names
from playground.lab import unavailable

PROCESSES, OUTPUT, MEMORY = 64, 1_000_000, 16 * 2**30  # memory: bytes of data, of each process


class Grade(NamedTuple):
    """What came of a submission; it took so many seconds."""

    student: str
    exercise: str
    passed: bool
    message: str
    seconds: float


def grade(file: Path, timeout: float = 60.0) -> Grade:
    """Run one submission to its end, or to its limits."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder, "verdict.json")
        what = run(file.absolute(), Path(folder), verdict, started + timeout)
        said: dict[str, Any] = {
            "passed": False,
            "message": what or "it ended unchecked",
        }
        if not what and verdict.exists():
            said = json.loads(verdict.read_text())
    seconds = time.monotonic() - started
    return Grade(file.parent.name, file.stem, said["passed"], said["message"], seconds)


def run(file: Path, folder: Path, verdict: Path, until: float) -> str:
    """What stopped it, or nothing. No process of it is left."""
    env = {**os.environ, "GRADE_TO": str(verdict), "TMPDIR": str(folder)}
    # Where that can be had it is alone in a world of processes, which ends as one.
    alone = (
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if not unavailable() else []
    )
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*alone, sys.executable, str(file)], cwd=folder, env=env, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True, preexec_fn=_limit,
        )  # fmt: skip
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    return "it does not end in time: stopped"
                if (count := len(_processes_of(verdict))) > PROCESSES:
                    return f"it started {count} processes: stopped"
                if os.fstat(output.fileno()).st_size >= OUTPUT:
                    return f"it printed more than {OUTPUT:,} bytes: stopped"
                time.sleep(0.05)
        finally:
            _end(process, verdict)
    return ""


def _limit() -> None:
    """Runs in the new process, before the submission does."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * OUTPUT, 100 * OUTPUT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _processes_of(verdict: Path) -> list[int]:
    """All processes that know this file: the submission's, whoever their parent is by now."""
    mark, found = f"GRADE_TO={verdict}\0".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _end(process: "subprocess.Popen[bytes]", verdict: Path) -> None:
    """Kill until nobody is left: who forks faster than we kill is stopped first."""
    process.kill()  # and its world, if it is alone in one
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while left := _processes_of(verdict):
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
        time.sleep(0.01)


def find(folder: Path) -> list[Path]:
    """All submissions. Raises ValueError for a folder without any, and for unknown exercises."""
    files = sorted(folder.glob("*/*.py"))
    if not files:
        raise ValueError(f"submissions={str(folder)!r}: no STUDENT/EXERCISE.py is in it")
    for file in files:
        if file.stem not in names():
            raise ValueError(f"{file}: there is no such exercise; choose from {', '.join(names())}")
    return files


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.grade", description=__doc__)
    parser.add_argument("submissions", type=Path)
    parser.add_argument("--json", type=Path, help="write the grades there, too")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each")
    given = parser.parse_args(arguments)
    try:
        files = find(given.submissions)
        if given.timeout <= 0:
            raise ValueError(f"timeout={given.timeout}: give more than 0 seconds")
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    grades = []
    for file in files:
        grades.append(mine := grade(file, given.timeout))
        sign, said = "right" if mine.passed else "wrong", mine.message.splitlines()[0]
        print(f"{mine.student:16} {mine.exercise:24} {sign}  {said}", flush=True)
    if given.json:
        given.json.write_text(json.dumps([mine._asdict() for mine in grades], indent=1) + "\n")
    print(f"{sum(mine.passed for mine in grades)} of {len(grades)} are right")


if __name__ == "__main__":
    main()
