"""Install the book's packages into the Python that runs this script.

    .venv/bin/python requirements/install.py

The Makefile and `.binder/postBuild` both call it, so they install the same packages. Only PyTorch
needs a choice. On Linux the package index has PyTorch for NVIDIA GPUs, several gigabytes with its
libraries, so a machine without such a GPU gets the build for CPUs, from PyTorch's own index.
TORCH=cpu and TORCH=cuda override that, and TORCH_INDEX names a copy of PyTorch's index.

PyTorch comes without hashes, because builds of one version differ between indexes. All other
packages are the files of `requirements/constraints.txt`, and this project itself comes last.
"""

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import urlsplit

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
    folder, download = tempfile.gettempdir(), size_of(kind).download
    if shutil.disk_usage(folder).free < download:
        stop(
            f"Less than {download / 1e9:.1f} GB free in {folder}, where pip unpacks what it "
            "downloads: set TMPDIR to a folder on a larger disk"
        )


class Failure(NamedTuple):
    """Why pip failed: its own errors, and our sentence if we recognize the reason."""

    errors: list[str]
    reason: str | None


class Progress:
    """What pip is doing: in a terminal one line that changes, otherwise a line every 30 seconds."""

    PAUSE = 30.0  # s
    AMOUNT = re.compile(r"Progress (\d+) of (\d+)$")

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.file, self.before, self.now = "", 0, 0  # bytes of earlier files, and of this one
        self.said = time.monotonic()

    def takes(self, line: str) -> bool:
        """Show a line of pip's; returns whether it was only about the progress of a download."""
        amount = self.AMOUNT.match(line)
        if amount:
            done, size = map(int, amount.groups())
            self.now = done
            so_far = (self.before + done) / 1e6
            line = f"{self.file}: {done / 1e6:.0f} of {size / 1e6:.0f} MB ({so_far:.0f} MB so far)"
        elif words := line.split():
            self.before, self.now = self.before + self.now, 0
            self.file = words[1] if words[0] == "Downloading" and len(words) > 1 else ""
        self.show(line.strip())
        return bool(amount)

    def show(self, line: str) -> None:
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 3
            print(f"\r\033[K  {line[:width]}", end="", flush=True)
        elif time.monotonic() > self.said + self.PAUSE:
            self.said = time.monotonic()
            say(f"  {line}")

    def wipe(self) -> None:
        if self.is_terminal:
            print("\r\033[K", end="", flush=True)


PROGRESS = Progress()


def reports_progress() -> bool:
    """Whether this Python's pip can write its progress as lines: it can since 24.1."""
    try:
        major, minor = metadata.version("pip").split(".")[:2]
    except metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (24, 1)


def run_pip(*arguments: str) -> tuple[int, str]:
    """Install these with pip; returns its exit status and its output, which the log gets as it
    comes.

    Modules are compiled when they are first imported, because only one in five ever is.
    """
    (ROOT / LOG).parent.mkdir(exist_ok=True)
    options = ["--no-compile", "--no-user", "--no-input"]
    options += ["--progress-bar", "raw"] if reports_progress() else []
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    lines = []
    with (
        open(ROOT / LOG, "a") as log,
        subprocess.Popen(
            command, cwd=ROOT, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        try:
            for line in process.stdout or ():
                if not PROGRESS.takes(line):
                    lines.append(line)
                    log.write(line)
                    log.flush()
        except KeyboardInterrupt:
            let_it_clean_up(process)
            raise
        finally:
            PROGRESS.wipe()
    return process.returncode, "".join(lines)


def run_pip_again(*arguments: str) -> tuple[int, str]:
    """The same after pip found nothing. Only its debug log says that an index refused a request."""
    details = (ROOT / LOG).with_name("pip-debug.log")
    details.unlink(missing_ok=True)
    status, output = run_pip(*arguments, "--retries", "0", "--log", str(details))
    found = details.read_text(errors="replace") if details.exists() else ""
    details.unlink(missing_ok=True)
    refused = "".join(f"{line}\n" for line in re.findall(r"Could not fetch URL .*", found))
    with open(ROOT / LOG, "a") as log:
        log.write(refused)
    return status, output + refused


def let_it_clean_up(process: subprocess.Popen[str]) -> None:
    """Ctrl-C reaches pip, too, which then removes its temporary files."""
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:  # it wasn't a terminal's Ctrl-C
        process.terminate()


def try_pip(*arguments: str) -> Failure | None:
    """Install these with pip, and return why that failed."""
    status, output = run_pip(*arguments)
    if status and "No matching distribution" in output and not reason(output):
        status, output = run_pip_again(*arguments)
    if status == 0:
        return None
    lines = output.splitlines()
    errors = [line for line in lines if "ERROR: " in line][:3] or lines[-3:]
    return Failure(errors or ["pip failed without a message"], reason(output))


COPY = "set PIP_INDEX_URL (for PyTorch, TORCH_INDEX) to a copy of the index"
FULL = r"Errno 28|No space left on device|Errno 122|No usable temporary directory"


def reason(output: str) -> str | None:
    """Why pip failed, with the way out; None if its output has none of the known reasons."""
    if re.search(FULL, output):
        return full_disk()
    if re.search(r"\b407 (Client Error|Proxy Auth)", output):
        return (
            "the proxy asks for a name and a password (407). Put them into its address: "
            "HTTPS_PROXY=http://name:password@host:port"
        )
    if re.search(r"Tunnel connection failed: 403", output):
        return f"the proxy refuses the connection (403). To use one that it allows, {COPY}"
    if found := re.search(r"URL (\S+): .*certificate verify failed: ([^(\n]+)", output):
        return (
            f"pip can't verify the certificate of {host(found[1])} ({found[2].strip()}). If your "
            "network inspects TLS, set PIP_CERT to the file with its root certificate, or "
            f"{COPY} that needs none"
        )
    page = r"\b(401|403) Client Error: .*? for url: (\S+)"
    file = r"HTTP error (401|403) while getting (\S+)"
    if found := re.search(page, output) or re.search(file, output):
        status, url = found.groups()
        if status == "401":
            return (
                f"{host(url)} asks for a name and a password (401): {COPY} that contains them, "
                "as in https://name:password@host/path"
            )
        return f"{host(url)} refuses this machine (403): {COPY} that you can reach"
    return None


def host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def full_disk() -> str:
    """Which folders need space, and how much they have. pip has removed its files by now."""
    try:
        folder = tempfile.gettempdir()
        temporary = f"{folder} has {shutil.disk_usage(folder).free / 1e9:.1f} GB free"
    except OSError:  # every folder for temporary files is full
        temporary = "no folder for temporary files has any space"
    return (
        f"a disk is full. For temporary files, {temporary} (set TMPDIR to use a different "
        f"folder), and {ROOT} has {shutil.disk_usage(ROOT).free / 1e9:.1f} GB free"
    )


def pip(what: str, *arguments: str) -> None:
    """Install these, or stop with the reason: ours in one line, otherwise pip's errors."""
    failure = try_pip(*arguments)
    if failure and failure.reason:
        stop(f"pip could not install {what}: {failure.reason} (details: {LOG})")
    if failure:
        stop(*failure.errors, f"pip could not install {what}: check the network (details: {LOG})")


def install_pip() -> None:
    """Install the pip of the constraints; an older one doesn't support hashes there."""
    (entry,) = re.findall(r"^pip==.*?(?=^\S)", (ROOT / CONSTRAINTS).read_text(), re.M | re.S)
    file = ROOT / "_build/newer-pip.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(entry)
    pip("a newer pip", "--require-hashes", "-r", str(file))


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
        failure = try_pip(*quick, *there)
        if not failure:
            return
        if not any("No matching distribution" in error for error in failure.errors):
            pip(f"{what} from {CPU_INDEX}", *there)
            return
        check_room("cuda")  # the build that pip finds may be this one
        if failure.reason:
            say(f"{CPU_INDEX} can't be used: {failure.reason}")
        say(f"{CPU_INDEX} doesn't have {what}: using the build that pip finds ...")
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


def main(files: list[str]) -> None:
    """Install these files of requirements; without any, all that the book needs."""
    try:
        for requirements in files:
            install_requirements(requirements)
        if not files:
            install_book()
    except KeyboardInterrupt:
        stop(f"Stopped: the same command goes on with the downloads that pip has kept ({LOG})")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        stop(f"The packages could not be installed: {full_disk()}")


if __name__ == "__main__":
    main(sys.argv[1:])
