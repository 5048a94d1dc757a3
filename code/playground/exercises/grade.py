"""Grade a folder of submissions: `python -m playground.exercises.grade FOLDER [--json FILE]`.

A submission is submissions/STUDENT/EXERCISE.py: the starter of the exercise, with the student's
lines in it. Each runs by itself, with limits of time, processes, memory, files and output, and sees
of the environment only what it needs; one that hangs, forks, floods or exits costs its own grade
only. Whoever wants to forge a verdict can: this is for teachers who read what they grade.

Needs Linux: a submission's processes are found, and measured, in /proc.
"""

import argparse
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from playground.exercises import names
from playground.lab.hosts import unavailable
from playground.server.limits import GB, MB, memory_used

try:
    import resource
except ImportError:  # `main` says so
    resource = None  # type: ignore[assignment]

PROCESSES, FILES = 64, 10_000
OUTPUT, FOLDER, MEMORY = 1_000_000, 200 * MB, 4 * GB  # bytes, of all its processes and files
VERDICT = 100_000  # bytes that a verdict may have
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
CODE = Path(__file__).parents[2]
UNCHECKED = "it ended unchecked"


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
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            verdict = Path(folder, "verdict.json")
            what = run(file.absolute(), Path(folder), verdict, started + timeout)
            passed, message = (False, what) if what else read(verdict, file.stem)
    except RecursionError:  # until Python 3.12 from `os.walk`, and later from the removal
        passed, message = False, "it made folders within folders without end"
    return Grade(file.parent.name, file.stem, passed, message, time.monotonic() - started)


def read(verdict: Path, exercise: str) -> tuple[bool, str]:
    """Whether it passed, and the message. Whatever `check` did not write is no verdict."""
    try:
        # A submission can put anything there: a pipe that nobody writes to, a link, a disk full.
        with open(os.open(verdict, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False, UNCHECKED
            said = json.loads(file.read(VERDICT))
    except (OSError, ValueError, RecursionError):
        return False, UNCHECKED
    match said:
        case {"exercise": str(name), "passed": bool(passed), "message": str(message)} if (
            message.strip()
        ):
            if name != exercise:
                return False, f"it checks {name[:40]!r}, and is an answer to {exercise!r}"
            return passed, message.strip()
    return False, UNCHECKED


def environment(folder: Path, verdict: Path) -> dict[str, str]:
    """What a submission sees. What else the teacher has there, secrets too, is not for it."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    home = {"HOME": str(folder), "TMPDIR": str(folder)}
    return {**kept, **home, "PYTHONPATH": str(CODE), "GRADE_TO": str(verdict)}


def run(file: Path, folder: Path, verdict: Path, until: float) -> str:
    """What stopped it, or nothing. No process of it is left."""
    # Where that can be had it is alone in a world of processes, which ends as one.
    alone = (
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if not unavailable() else []
    )
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*alone, sys.executable, str(file)], cwd=folder, env=environment(folder, verdict),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=_limit,
        )  # fmt: skip
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    return "it does not end in time: stopped"
                if os.fstat(output.fileno()).st_size >= OUTPUT:
                    return f"it printed more than {OUTPUT:,} bytes: stopped"
                if what := _too_much(folder, verdict):
                    return f"{what}: stopped"
                time.sleep(0.05)
        finally:
            _end(process, verdict)
    return ""


def _limit() -> None:
    """Runs in the new process, before the submission does."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY), int(MEMORY)))  # of each process
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * OUTPUT, 100 * OUTPUT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _too_much(folder: Path, verdict: Path) -> str:
    """Which limit of all its processes and files together it is past, in words, or nothing."""
    processes = _processes_of(verdict)
    if len(processes) > PROCESSES:
        return f"it started {len(processes)} processes"
    if (used := memory_used(processes, MEMORY)) > MEMORY:
        return f"it used {used / GB:.1f} GB of memory, and {MEMORY / GB:g} GB are allowed"
    files, size = 0, 0.0
    for where, folders, names_here in os.walk(folder):
        files += len(folders) + len(names_here)
        if files > FILES:
            return f"it made more than {FILES:,} files"
        for name in names_here:
            with contextlib.suppress(OSError):  # it is gone
                size += Path(where, name).lstat().st_blocks * 512
    return f"its files take more than {FOLDER / MB:g} MB" if size > FOLDER else ""


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
    parser = argparse.ArgumentParser(
        prog="python -m playground.exercises.grade", description=__doc__
    )
    parser.add_argument("submissions", type=Path)
    parser.add_argument("--json", type=Path, help="write the grades there, too")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each")
    given = parser.parse_args(arguments)
    try:
        if resource is None or not Path("/proc/self/environ").exists():
            raise ValueError("grading needs Linux, whose /proc shows what a submission runs")
        files = find(given.submissions)
        if given.timeout <= 0:
            raise ValueError(f"timeout={given.timeout}: give more than 0 seconds")
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    grades = []
    for file in files:
        grades.append(mine := grade(file, given.timeout))
        sign, said = "right" if mine.passed else "wrong", mine.message.splitlines()[0]
        line = f"{mine.student:16} {mine.exercise:24} {sign}  {said}"
        # A message may hold what has no letters, or what a terminal obeys.
        print("".join(c if c.isprintable() else "?" for c in line), flush=True)
    if given.json:
        given.json.write_text(json.dumps([mine._asdict() for mine in grades], indent=1) + "\n")
    print(f"{sum(mine.passed for mine in grades)} of {len(grades)} are right")


if __name__ == "__main__":
    main()
