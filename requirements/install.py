"""Install the book's packages into the Python that runs this script.

    .venv/bin/python requirements/install.py

The Makefile and `.binder/postBuild` both call it, so they install the same packages. Only PyTorch
needs a choice. On Linux the package index has PyTorch for NVIDIA GPUs, several gigabytes with its
libraries, so a machine without such a GPU gets the build for CPUs, from PyTorch's own index.
TORCH=cpu and TORCH=cuda override that, and TORCH_INDEX names a copy of PyTorch's index.

PyTorch comes without hashes, because builds of one version differ between indexes. All other
packages are the files of `requirements/constraints.txt`, and this project itself comes last.
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
RECORD = ROOT / "bench/recorded/sizes.json"
CONSTRAINTS = "requirements/constraints.txt"
LOG = "_build/pip.log"
CPU_INDEX = os.environ.get("TORCH_INDEX") or "https://download.pytorch.org/whl/cpu"
TORCH = re.findall(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.M)[0]

# The CUDA version of the build for GPUs, and the oldest driver that it runs on, from table 2 of
# CUDA's release notes: the minimum driver version for CUDA minor version compatibility.
CUDA, DRIVER = 13, 580
SPARE = 1.5e9  # bytes for the built book and for pip's temporary files


class Size(NamedTuple):
    """Bytes to download, and bytes on disk."""

    download: int
    disk: int


def stop(*lines: str) -> NoReturn:
    raise SystemExit("\n".join(lines))


def say(line: str) -> None:
    print(line, flush=True)


def choose(system: str, machine: str, driver: str | None, asked: str) -> str:
    """The build of PyTorch for this machine: `cpu`, `cuda`, or `mac`, which has only one build.

    `system` and `machine` are the output of `uname -sm`, `driver` is the version of NVIDIA's driver
    or None, and `asked` is the environment variable TORCH. Exits if there is no such build.
    """
    if asked not in ("", "cpu", "cuda"):
        stop(f"TORCH={asked}: must be cpu or cuda. Without TORCH, the build fits this machine")
    match system, machine:
        case "Linux", "x86_64" | "aarch64":
            return asked or ("cuda" if driver else "cpu")
        case "Darwin", "arm64":
            if asked == "cuda":
                stop(f"TORCH=cuda: PyTorch {TORCH} has no build for NVIDIA GPUs on macOS")
            return "mac"
        case "Darwin", _:
            stop(
                f"PyTorch {TORCH} has no build for Intel Macs, or for Python under Rosetta: "
                "use the container of .devcontainer"
            )
        case _:
            stop(
                f"PyTorch {TORCH} has no build for {system} on {machine}: "
                "use Linux on x86-64 or ARM, or macOS on Apple silicon"
            )


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver; None if there is no NVIDIA GPU."""
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
    """The build and its sizes, what it needs, and how to choose the other one."""
    if kind == "mac":
        return f"PyTorch {TORCH} for macOS"
    size = size_of(kind)
    amount = f"{size.download / 1e9:.1f} GB to download, {size.disk / 1e9:.1f} GB on disk"
    if kind == "cpu":
        return f"PyTorch {TORCH} for CPUs: {amount} in all (for NVIDIA GPUs, set TORCH=cuda)"
    return (
        f"PyTorch {TORCH} for NVIDIA GPUs, CUDA {CUDA}, needs driver {DRIVER} or newer "
        f"(here {driver or 'none'}): {amount} in all (for CPUs only, set TORCH=cpu)"
    )


def size_of(kind: str) -> Size:
    """Size of all packages, from the record of `bench.set_up`; a Mac's aren't larger."""
    recorded = json.loads(RECORD.read_text())
    wheels = Size(**recorded["wheels"]["cuda" if kind == "cuda" else "cpu"])
    return Size(wheels.download, wheels.disk + recorded["node_modules"])


def room(kind: str) -> int:
    """GB that have to be free, for the downloads (which pip keeps), the packages and the book."""
    return math.ceil((sum(size_of(kind)) + SPARE) / 1e9)


def check_room(kind: str) -> None:
    if shutil.disk_usage(ROOT).free < room(kind) * 1e9:
        smaller = ", or set TORCH=cpu" if kind == "cuda" else ""
        stop(f"Less than {room(kind)} GB free on the disk of {ROOT}: free some space{smaller}")


def try_pip(*arguments: str) -> list[str]:
    """Install these with pip, and return its errors. The log gets all of pip's output.

    Modules are compiled when they are first imported, because only one in five ever is.
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
    return (
        [line for line in lines if "ERROR: " in line][:3]
        or lines[-3:]
        or ["pip failed without a message"]
    )


def pip(what: str, *arguments: str) -> None:
    """Install these, or stop with pip's error."""
    if errors := try_pip(*arguments):
        stop(*errors, f"pip could not install {what}: check the network (details: {LOG})")


def install_pip() -> None:
    """Install the pip of the constraints; an older one doesn't support hashes there."""
    (entry,) = re.findall(r"^pip==.*?(?=^\S)", (ROOT / CONSTRAINTS).read_text(), re.M | re.S)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(entry)
        file.flush()
        pip("a newer pip", "--require-hashes", "-r", file.name)


def installed() -> str | None:
    """The kind of PyTorch that is installed, or None. The version of a CPU build ends in +cpu."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return "cpu" if version.endswith("+cpu") else "cuda"


def again(kind: str) -> bool:
    """Whether a different kind of PyTorch is installed."""
    return kind != "mac" and installed() not in (None, kind)


def install_torch(kind: str) -> None:
    """Install PyTorch without its dependencies, which come with the other packages.

    If PyTorch's index can't be reached, pip uses its usual index. If a download from PyTorch's
    index is interrupted, pip retries there, because the other build has gigabytes.
    """
    anew = ["--force-reinstall"] if again(kind) else []
    what = f"PyTorch {TORCH}"
    if kind == "cuda":  # three =: only the build without a label
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
        check_room("cuda")  # the build that pip finds may be this one
        say(f"{CPU_INDEX} doesn't have PyTorch {TORCH}: using the build that pip finds ...")
    pip(what, "--no-deps", f"torch=={TORCH}")


def install_requirements(name: str) -> None:
    """Install a file of requirements and its dependencies, from the files of the constraints."""
    pip(name, "-r", name, "-c", CONSTRAINTS)


def chosen() -> str:
    """The kind of PyTorch for this machine, which is also printed. Exits if the disk is full."""
    system, machine = subprocess.run(
        ["uname", "-sm"], capture_output=True, text=True, check=True
    ).stdout.split()
    driver = nvidia_driver()
    kind = choose(system, machine, driver, os.environ.get("TORCH", ""))
    if installed() is None or again(kind):  # otherwise, most of it is already there
        check_room(kind)
    say(f"Installing {describe(kind, driver)} ...")
    return kind


def install_book() -> None:
    """Install everything that the book and its kernels need."""
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
