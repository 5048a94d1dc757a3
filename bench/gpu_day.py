"""`python -m bench.gpu_day`, or `make gpu-day`: all that the book wants to know of a GPU, at once.

At most 40 minutes in all. Each step is a process with a deadline; what it found is kept as soon as
it ends, in `bench/recorded/gpu_day.json`, and the next one runs whether it failed or not. With
`--dry-run` each is executed on the CPU in small, and kept in `_build/gpu_day`: that tries the
steps, and measures nothing.
"""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.pairs import ROOT
from playground.environment import environment

MINUTES = 40
GRACE = 15.0  # s after each of the three signals that end a step, the politest first
WORK = ROOT / "_build/gpu_day"  # what the steps say, and write
NOTE = ROOT / "_build/gpu.json"  # by tests/gpu/conftest.py
MODELS = ("gpt-2-124m", "mpt-1b")
WAYS = ("plain", "fsdp2", "zero1", "zero2", "zero3")
SCRIPTS = ("ddp", "accumulate", "mixed", "fsdp", "compiled")


class Command(NamedTuple):
    """A command, how long it may take (s), and the file to which it writes what it found."""

    name: str
    command: list[str]
    limit: float
    found: Path


def steps(folder: Path, gpus: int) -> list[Command]:
    """All of them, in the order of their worth. Without a GPU, its tests are only collected."""
    python = [sys.executable, "-m"]
    torchrun = [*python, "torch.distributed.run", "--standalone", "--nproc-per-node"]
    torchrun += [str(max(1, gpus)), "-m"]

    def ours(name: str, limit: float, *words: str, start: list[str] = python) -> Command:
        to = WORK / f"{name.replace('/', '-')}.json"
        command = [*start, "bench.gpu_day_steps", *words, "--to", str(to)]
        return Command(name, command, limit, to)

    tests = [*python, "pytest", "tests/gpu", "-rs"]
    if not gpus:
        tests.append("--collect-only")
    found = [ours("rates", 120, "rates"), Command("test-gpu", tests, 600, NOTE)]
    for model in MODELS:
        found += [ours(f"train/{model}/{way}", 90, "train", model, way) for way in WAYS]
    found.append(ours("trace", 90, "trace", MODELS[0], str(folder / "gpu_day_trace.json.gz")))
    found.append(ours("script/single", 60, "script", "single", ""))
    for name in SCRIPTS:
        limit, run = (240 if name == "compiled" else 60), str(WORK / "runs" / name)
        found.append(ours(f"script/{name}", limit, "script", name, run, start=torchrun))
    return found


def run(step: Command, limit: float) -> dict[str, Any]:
    """What a step found, whether it came to its end, and after how long; else its last words."""
    step.found.unlink(missing_ok=True)
    log = WORK / f"{step.name.replace('/', '-')}.log"
    started = time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(
            step.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # its lines in the order of their writing
        )  # fmt: skip
        try:
            ended = wait(process, limit)
        finally:  # it is in a session of its own, so Ctrl+C does not reach it
            if process.poll() is None:
                wait(process, 0)
    result = {"ok": process.returncode == 0, "s": time.monotonic() - started, "limit_s": limit}
    if not result["ok"]:
        result["said"] = log.read_text(errors="replace").splitlines()[-20:]
        result["failed"] = f"with status {process.returncode}" if ended else "at its deadline"
    if step.found.exists():
        result |= json.loads(step.found.read_text())
    return result


def wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """Whether it ended by itself. At its deadline it is asked to end, then made to."""
    for patience, ending in (
        (limit, signal.SIGINT),
        (GRACE, signal.SIGTERM),
        (GRACE, signal.SIGKILL),
    ):
        try:
            process.wait(patience)
            return ending == signal.SIGINT
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, ending)
    process.wait()
    return False


def run_all(chosen: Iterable[Command], kept: Path, stamp: dict[str, Any], minutes: float) -> bool:
    """Run them one after the other; whether all came to their ends. What was kept before stays."""
    results = json.loads(kept.read_text()) if kept.exists() else {}
    until, ok = time.monotonic() + 60 * minutes, True
    for step in chosen:
        left = until - time.monotonic()
        if left > 0:
            result = run(step, min(step.limit, left))
        else:
            result = {"ok": False, "failed": f"not run: {minutes:g} minutes were over"}
        results[step.name] = result | {"env": stamp}
        kept.with_suffix(".new").write_text(json.dumps(results, indent=1) + "\n")
        kept.with_suffix(".new").replace(kept)
        print(f"{step.name:26}{as_line(result)}", flush=True)
        ok &= result["ok"]
    return ok


def as_line(result: dict[str, Any]) -> str:
    """What is said of a step as soon as it has ended."""
    if not result["ok"]:
        return f"FAILED {result['failed']}"
    line = f"{result['s']:6.1f} s"
    for name, unit, word in (("bytes", 1e9, "GB"), ("tokens_per_s", 1e3, "thousand tokens/s")):
        if "predicted" in result:
            found, planned = result["measured"][name], result["predicted"][name]
            line += f"   {found / unit:.3g} {word}, planned {planned / unit:.3g}"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_day", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, in small")
    parser.add_argument("--only", default="*", help="steps to run, such as 'rates,train/*'")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    parser.add_argument("--to", type=Path, help="another folder than bench/recorded")
    parser.add_argument("--commit", help="what this copy was made from, where git does not know")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without the end of its step
    if given.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    gpus = torch.cuda.device_count()
    if not gpus and not given.dry_run:
        parser.exit(1, f"PyTorch {torch.__version__} finds no CUDA GPU here; try --dry-run\n")
    folder = given.to or (WORK if given.dry_run else ROOT / "bench/recorded")
    stamp = environment()
    if given.commit:
        stamp["commit"] = given.commit

    patterns = given.only.split(",")
    every = steps(folder.absolute(), gpus)
    if given.dry_run:  # beside other work, on few cores
        every = [step._replace(limit=4 * step.limit) for step in every]
    chosen = [step for step in every if any(fnmatch.fnmatch(step.name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(step.name for step in every)
        parser.exit(2, f"--only {given.only}: choose from {names}\n")
    shutil.rmtree(WORK, ignore_errors=True)
    for needed in (WORK, folder):
        needed.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "code"), str(ROOT)])
    ok = run_all(chosen, folder / "gpu_day.json", stamp, given.minutes)
    if not given.dry_run and NOTE.exists():
        said = json.loads(NOTE.read_text()) | {"commit": stamp["commit"]}
        (folder / "gpu.json").write_text(json.dumps(said, indent=1) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
