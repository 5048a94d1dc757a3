"""Install the book's packages into the Python that runs this script.

    .venv/bin/python requirements/install.py

The Makefile and `.binder/postBuild` call it, so that all get the same. Only PyTorch needs a choice.
On Linux the package index has PyTorch for NVIDIA GPUs, several gigabytes with its libraries, so a
machine without such a GPU gets the build for CPUs, from PyTorch's own index. TORCH=cpu and
TORCH=cuda overrule that, and TORCH_INDEX names a copy of PyTorch's index.

PyTorch comes without hashes, because its builds differ from index to index under one version. All
else is what `requirements/constraints.txt` says, file by file, and this project itself comes last.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench/recorded/downloads.json"
CONSTRAINTS = "requirements/constraints.txt"
LOG = "_build/pip.log"
CPU_INDEX = os.environ.get("TORCH_INDEX") or "https://download.pytorch.org/whl/cpu"
TORCH = re.findall(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.M)[0]

# What the build for GPUs was made with, and the oldest driver that it runs on, as the release notes
# of CUDA say (table 2, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility").
CUDA, DRIVER = 13, 580
SPARE = 1.5e9  # bytes for what is built, and for pip's work


class Size(NamedTuple):
    """In bytes: what is downloaded, and what it takes on disk."""

    download: int
    disk: int


def stop(*lines: str) -> NoReturn:
    raise SystemExit("\n".join(lines))


def say(line: str) -> None:
    print(line, flush=True)


def choose(system: str, machine: str, driver: str | None, asked: str) -> str:
    """Which PyTorch this machine gets: `cpu`, `cuda`, or `mac` (of which there is only one).

    `system` and `machine` are what `uname -sm` says, `driver` is the version of NVIDIA's, and
    `asked` is the reader's TORCH.
    """
    if asked not in ("", "cpu", "cuda"):
        stop(f"TORCH={asked} is none of cpu, cuda: leave it out, and the machine decides")
    match system, machine:
        case "Linux", "x86_64" | "aarch64":
            return asked or ("cuda" if driver else "cpu")
        case "Darwin", "arm64":
            if asked == "cuda":
                stop(f"TORCH=cuda: There is no PyTorch {TORCH} for NVIDIA GPUs on macOS")
            return "mac"
        case "Darwin", _:
            stop(
                f"There is no PyTorch {TORCH} for Intel Macs, nor for a Python below Rosetta: "
                "use the container of .devcontainer"
            )
        case _:
            stop(f"There is no PyTorch {TORCH} for {system} on {machine}")


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver, None where there is no NVIDIA GPU."""
    program = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    try:
        answer = subprocess.run(
            [program, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else None


def describe(kind: str, driver: str | None) -> str:
    """What comes, what it needs, and how to have the other."""
    if kind == "mac":
        return f"PyTorch {TORCH} for macOS"
    size = size_of(kind)
    amount = f"{size.download / 1e9:.1f} GB to download, {size.disk / 1e9:.1f} GB on disk"
    if kind == "cpu":
        return f"PyTorch {TORCH} for CPUs: {amount} with all else (TORCH=cuda: for NVIDIA GPUs)"
    return (
        f"PyTorch {TORCH} for NVIDIA GPUs, CUDA {CUDA}, needs driver {DRIVER} or newer "
        f"(here {driver or 'none'}): {amount} with all else (TORCH=cpu: without GPUs)"
    )


def size_of(kind: str) -> Size:
    """Of all packages, as `bench.downloads` read it from the wheels; a Mac's are no larger."""
    recorded = json.loads(RECORD.read_text())
    wheels = Size(**recorded["wheels"]["cuda" if kind == "cuda" else "cpu"])
    return Size(wheels.download, wheels.disk + recorded["node_modules"])


def room(kind: str) -> int:
    """GB that have to be free: for what is downloaded (pip keeps that), unpacked and built."""
    return math.ceil((sum(size_of(kind)) + SPARE) / 1e9)


def check_room(kind: str) -> None:
    if shutil.disk_usage(ROOT).free < room(kind) * 1e9:
        smaller = ", or say TORCH=cpu" if kind == "cuda" else ""
        stop(f"Less than {room(kind)} GB free on this disk: make room{smaller}")


def try_pip(*arguments: str) -> list[str]:
    """Let pip install these, and return why it could not. What it says is appended to the log.

    A module is compiled when it is first imported, and kept: one in five that come is ever.
    """
    command = [sys.executable, "-m", "pip", "install", "--no-compile", "--no-user", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    (ROOT / LOG).parent.mkdir(exist_ok=True)
    with open(ROOT / LOG, "a") as log:
        log.write(done.stdout)
    if done.returncode == 0:
        return []
    lines = done.stdout.splitlines()
    return [line for line in lines if "ERROR: " in line][:3] or lines[-3:] or ["pip said nothing"]


def pip(what: str, *arguments: str) -> None:
    """Install these, or stop with pip's own words."""
    if errors := try_pip(*arguments):
        stop(*errors, f"pip could not install {what}: is there a network? (details: {LOG})")


def install_pip() -> None:
    """The pip of the constraints: an older one knows no hashes there, and would refuse the rest."""
    (entry,) = re.findall(r"^pip==.*?(?=^\S)", (ROOT / CONSTRAINTS).read_text(), re.M | re.S)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(entry)
        file.flush()
        pip("a newer pip", "--require-hashes", "-r", file.name)


def installed() -> str | None:
    """The kind of PyTorch that is here: one for CPUs says so in its version."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return "cpu" if version.endswith("+cpu") else "cuda"


def again(kind: str) -> bool:
    """Is another kind of PyTorch here?"""
    return kind != "mac" and installed() not in (None, kind)


def install_torch(kind: str) -> None:
    """PyTorch without its dependencies, which come with all others.

    Where PyTorch's index cannot be reached, pip goes on with what it has. Where it can be, and a
    download broke off, pip tries again with patience: elsewhere it would be gigabytes.
    """
    anew = ["--force-reinstall"] if again(kind) else []
    what = f"PyTorch {TORCH}"
    if kind == "cuda":  # three signs: only the build that has no other label
        pip(what, "--no-deps", *anew, f"torch==={TORCH}")
        return
    if kind == "cpu":
        quick = ("--timeout", "10", "--retries", "0")
        there = ("--no-deps", "--index-url", CPU_INDEX, *anew, f"torch=={TORCH}")
        errors = try_pip(*quick, *there)
        if not errors:
            return
        if not any("No matching distribution" in error for error in errors):
            pip(f"{what} from {CPU_INDEX}", *there)
            return
        check_room("cuda")  # which it may be
        say(f"PyTorch is not to be had from {CPU_INDEX}: taking what pip finds elsewhere ...")
    pip(what, "--no-deps", f"torch=={TORCH}")


def install_requirements(name: str) -> None:
    """What a file of requirements names, and what that needs, in the files of the constraints."""
    pip(name, "-r", name, "-c", CONSTRAINTS)


def chosen() -> str:
    """The kind of PyTorch for this machine, said in a line; stops where there is no room for it."""
    system, machine = subprocess.run(
        ["uname", "-sm"], capture_output=True, text=True, check=True
    ).stdout.split()
    driver = nvidia_driver()
    kind = choose(system, machine, driver, os.environ.get("TORCH", ""))
    if installed() is None or again(kind):  # else most is there already
        check_room(kind)
    say(f"Installing {describe(kind, driver)} ...")
    return kind


def install_book() -> None:
    """All that the book and its kernels need."""
    (ROOT / LOG).unlink(missing_ok=True)
    kind = chosen()
    install_pip()
    install_torch(kind)
    say("Installing Python packages (a minute or two) ...")
    install_requirements("requirements.txt")
    pip("the book's own code", "--no-deps", "--no-build-isolation", "-e", ".")


if __name__ == "__main__":
    for requirements in sys.argv[1:]:
        install_requirements(requirements)
    if not sys.argv[1:]:
        install_book()
