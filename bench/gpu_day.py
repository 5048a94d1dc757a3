"""What one GPU can tell this book in nine minutes: `python -m bench.gpu_day`, or `make gpu-day`.

Each step runs in a separate process and gets a share of the time that is left. Its results go to
gpu_day.json as soon as it has them, so a step that dies, hangs or runs out of time costs only what
it was measuring, and the next one starts. Nothing is downloaded.

    rates         matrix products and copies
    curves        memory and time of a step: strategies, micro-batches, compiled and recomputed
    rank_zero     memory of rank 0 of 8 to 64, with real tensors and messages that go nowhere
    traces        one step under DDP and one under FSDP2, from PyTorch's profiler
    train_script  train.py on this book's own text
    tests         tests/gpu
"""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.pairs import ROOT
from playground.planner.measured_cases import KEPT, SHAPES
from playground.trace_reader.page import TRACES

MINUTES = 9.0
GRACE = 5.0  # s after each of the three signals that end a step, the politest first
LAST = 10.0  # s before its limit at which a step should have ended by itself
WORK = ROOT / "_build/gpu_day"  # logs, and what each step writes
NOTE = WORK / "tests.json"  # by tests/gpu/conftest.py
LOGS = "gpu_day_logs.tar.gz"
LISTS = ("points", "ranks", "traces", "runs")  # that steps write,
COUNTS = ("passed", "failed", "skipped")  # and that the tests do


class Step(NamedTuple):
    """A command, its weight when the time is shared out (about s), and the JSON that it writes."""

    name: str
    command: list[str]
    weight: float
    found: Path


def steps(folder: Path, is_dry: bool = False) -> list[Step]:
    """All steps, in the order of their worth. Without a GPU its tests are only collected."""
    python = [sys.executable, "-m"]

    def measures(name: str, weight: float, *words: str) -> Step:
        to = WORK / f"{name.replace('/', '-').replace(', ', '-').replace(' ', '-')}.json"
        command = [*python, "bench.gpu_day_steps", *words, "--to", str(to)]
        return Step(name, command, weight, to)

    tests = [*python, "pytest", "tests/gpu", "-rs", "-p", "no:cacheprovider"]
    tests += ["--collect-only"] if is_dry else ["-n", "4", "--continue-on-collection-errors"]
    models = ["tiny"] if is_dry else [name for name in SHAPES if name != "tiny"]
    return [
        measures("rates", 30, "rates"),
        *(measures(f"curves/{name}", 200 / len(models), "curves", name) for name in models),
        measures("rank_zero", 60, "rank_zero"),
        measures("traces", 30, "traces", str(folder)),
        measures("train_script", 60, "train_script"),
        Step("tests", tests, 140, NOTE),
    ]


def run(step: Step, limit: float, keep: "Kept") -> dict[str, Any]:
    """Run a step, and keep what it writes while it writes. Its results, and how it ended."""
    step.found.unlink(missing_ok=True)
    log = WORK / f"{step.found.stem}.log"
    command = list(step.command)
    if "bench.gpu_day_steps" in command:
        command += ["--seconds", f"{max(1.0, limit - LAST):.1f}"]
    started = time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            ended = wait(process, limit, lambda: keep(step.name, found_by(step)))
        finally:  # its session is separate, so Ctrl+C doesn't reach it
            if process.poll() is None:
                wait(process, 0)
    result = found_by(step)
    result |= {"ok": process.returncode == 0, "s": time.monotonic() - started, "limit_s": limit}
    if not result["ok"]:
        result["said"] = log.read_text(errors="replace").splitlines()[-20:]
        result["problem"] = f"with status {process.returncode}" if ended else "at its time limit"
    return result


def found_by(step: Step) -> dict[str, Any]:
    """What a step has written so far."""
    try:
        return json.loads(step.found.read_text())
    except (OSError, ValueError):
        return {}


def wait(process: "subprocess.Popen[bytes]", limit: float, look: Any = lambda: None) -> bool:
    """Whether a process ended by itself. At its limit it is asked to end, then made to.

    `look` is called every second until then.
    """
    until = time.monotonic() + limit
    while (left := until - time.monotonic()) > 0:
        try:
            process.wait(min(1.0, left))
            return True
        except subprocess.TimeoutExpired:
            look()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, ending)
        try:
            process.wait(GRACE)
            break
        except subprocess.TimeoutExpired:
            continue
    return False


class Kept:
    """gpu_day.json: what each step has found, with the stamp. Results of earlier calls stay."""

    def __init__(self, file: Path, stamp: dict[str, Any]):
        self.file, self.stamp = file, stamp
        self.results = json.loads(file.read_text()) if file.exists() else {}

    def __call__(self, name: str, result: dict[str, Any]) -> None:
        if result:
            self.results[name] = result | {"env": self.stamp}
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(self.results, indent=1) + "\n")
            fresh.replace(self.file)


def run_all(chosen: Iterable[Step], keep: Kept, minutes: float) -> bool:
    """Run the steps one after the other; whether all of them came to their ends."""
    waiting, ok = list(chosen), True
    until = time.monotonic() + 60 * minutes
    while waiting:
        step, left = waiting[0], until - time.monotonic()
        share = left * step.weight / sum(each.weight for each in waiting)
        if share > 0:
            result = run(step, share, keep)
        else:
            result = {"ok": False, "problem": f"not run: {minutes:g} minutes were over"}
        keep(step.name, result)
        pack(keep.file.parent)
        print(f"{step.name:30}{as_line(result)}", flush=True)
        ok &= result["ok"]
        del waiting[0]
    return ok


def pack(folder: Path) -> None:
    """All logs so far in one file."""
    with tarfile.open(folder / LOGS, "w:gz") as tar:
        for path in sorted([*WORK.glob("*.log"), *WORK.glob("*.json")]):
            tar.add(path, path.name)


def stamp_of_another() -> dict[str, Any]:
    """The stamp, by a process that ends: one that asks for a GPU's name would hold memory there."""
    code = "import json, playground.environment as e; print(json.dumps(e.environment()))"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    return json.loads(found.stdout)


def keep_run(folder: Path) -> None:
    """Put the results of a run with --to where the pages read them, beside those of other steps."""
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = json.loads((folder / KEPT.name).read_text())
    KEPT.write_text(json.dumps(before | found, indent=1) + "\n")
    for trace in folder.glob("gpu-day-*.json.gz"):
        shutil.copy(trace, TRACES)


def as_line(result: dict[str, Any]) -> str:
    """One line about a step that has ended: how long it took, and what it found."""
    rows = (f"{len(result[name])} {name}" for name in LISTS if name in result)
    counts = (f"{result[name]} {name}" for name in COUNTS if name in result)
    how = "" if result["ok"] else f"FAILED {result['problem']}"
    return "  ".join([f"{result.get('s', 0):6.1f} s", ", ".join([*rows, *counts]), how]).rstrip()


def main() -> int:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_day", description=__doc__, formatter_class=kind
    )
    add = parser.add_argument
    add(
        "--minutes", type=float, default=MINUTES, help="time for all steps, in minutes (default: 9)"
    )
    add("--to", type=Path, help="folder for the results (default: where the pages read them)")
    add(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="folder of --to, whose results are kept; runs nothing",
    )
    add("--commit", help="commit of this copy (default: what git says)")
    add("--only", default="*", help="names of steps, such as 'rates,curves/*' (default: all)")
    add("--dry-run", action="store_true", help="tiny models on the CPU, with results in _build")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step that is running
    if given.minutes <= 0:
        parser.error(f"--minutes {given.minutes:g}: must be more than 0")
    if given.keep:
        if not (given.keep / KEPT.name).exists():
            parser.error(f"--keep {given.keep}: {KEPT.name} isn't there; give the folder of --to")
        keep_run(given.keep)
        return 0
    if given.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        parser.exit(1, f"PyTorch {torch.__version__} finds no CUDA GPU here; try --dry-run\n")
    folder = (given.to or WORK / "results").absolute()
    every = steps(folder, given.dry_run)
    patterns = given.only.split(",")
    chosen = [step for step in every if any(fnmatch.fnmatch(step.name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(step.name for step in every)
        parser.error(f"--only {given.only}: no such step; choose from {names}")
    shutil.rmtree(WORK, ignore_errors=True)
    for needed in (WORK, folder):
        needed.mkdir(parents=True, exist_ok=True)
    for backend in ("GLOO", "NCCL"):  # a machine without a network may not know its own name
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "code"), str(ROOT)])
    stamp = stamp_of_another() | ({"commit": given.commit} if given.commit else {})
    ok = run_all(chosen, Kept(folder / KEPT.name, stamp), given.minutes)
    if not given.to and not given.dry_run:
        keep_run(folder)
    print(f"kept in {folder}")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
