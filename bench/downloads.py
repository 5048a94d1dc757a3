"""What `make serve` downloads, and what it takes on disk: `python -m bench.downloads --record`.

For Linux on x86-64 and the Python that runs this, with PyTorch for CPUs and for GPUs. `uv`, which
`make constraints` installs, names the wheels and their sizes on the package index, and the table of
contents at the end of a wheel says what it unpacks to, so that only PyTorch's wheel for CPUs has to
be downloaded. Keeps the sums in `bench/recorded/downloads.json`, which `requirements/install.py`
reads, and writes a sentence of the page *Running the book*.
"""

import io
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from requirements.install import CONSTRAINTS, CPU_INDEX, RECORD, TORCH, Size

from bench.on_page import main
from bench.pairs import ROOT
from playground.environment import environment

ONLY_FOR_GPUS = re.compile(r"cuda-|nvidia-|triton$|torch$")


class Remote(io.RawIOBase):
    """A file on a server; only the parts that are read are downloaded."""

    def __init__(self, url: str, size: int):
        self.url, self.size, self.at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self.size - self.at)
        if length <= 0:
            return 0
        part = {"Range": f"bytes={self.at}-{self.at + length - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=part)) as answer:
            content = answer.read()
        assert len(content) == length, "the server doesn't send parts of a file"
        buffer[:length] = content
        self.at += length
        return length


def unpacked(wheel: Any) -> int:
    """Bytes of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(file.file_size for file in archive.infolist())


def best(wheels: list[dict[str, Any]]) -> dict[str, Any]:
    """The wheel that pip takes for this Python."""
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}

    def rank(wheel: dict[str, Any]) -> int:
        tags = parse_wheel_filename(wheel["url"].rsplit("/", 1)[1])[3]
        return min(ranks.get(tag, len(ranks)) for tag in tags)

    return min(wheels, key=rank)


def wheels_of_the_book() -> dict[str, Size]:
    """The packages that `requirements.txt` brings from the package index, by name."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "pylock.toml")
        wanted = Path(folder, "requirements.in")
        lines = (ROOT / "requirements.txt").read_text().splitlines()
        wanted.write_text("\n".join(line for line in lines if not line.startswith("-e")))
        subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-config", wanted,
             "-c", ROOT / CONSTRAINTS, "--format", "pylock.toml", "-o", lock],
            check=True,
        )  # fmt: skip
        packages = tomllib.loads(lock.read_text())["packages"]
    sizes = {}
    for package in packages:
        wheel = best(package["wheels"])
        buffered = io.BufferedReader(Remote(wheel["url"], wheel["size"]), 1 << 16)
        sizes[package["name"]] = Size(wheel["size"], unpacked(buffered))
    return sizes


def wheel_for_cpus() -> Size:
    """PyTorch's own, downloaded: its index tells no sizes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder,
             "--index-url", CPU_INDEX, f"torch=={TORCH}+cpu"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(folder).iterdir()
        return Size(wheel.stat().st_size, unpacked(wheel))


def measure() -> dict[str, Any]:
    """Bytes to download, and bytes on disk, with PyTorch for CPUs and for GPUs."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit("The sizes must be those of Linux on x86-64: run this there")
    with_cuda = wheels_of_the_book()
    others = [size for name, size in with_cuda.items() if not ONLY_FOR_GPUS.match(name)]
    web = sum(f.stat().st_size for f in (ROOT / "book/web/node_modules").rglob("*") if f.is_file())
    kinds = {"cuda": [*with_cuda.values()], "cpu": [*others, wheel_for_cpus()]}
    return {
        "torch": TORCH,
        "wheels": {
            kind: Size(sum(s.download for s in sizes), sum(s.disk for s in sizes))._asdict()
            for kind, sizes in kinds.items()
        },
        "node_modules": web,
        "env": {key: environment()[key] for key in ("python", "date")},
    }


def sentence(measured: dict[str, Any]) -> str:
    """What *Running the book* says of it."""
    cpu, cuda = (Size(**measured["wheels"][kind]) for kind in ("cpu", "cuda"))
    return (
        f"With PyTorch {measured['torch']} for CPUs, the set-up downloads "
        f"{cpu.download / 1e6:.0f} MB of packages, which take {cpu.disk / 1e6:.0f} MB on disk. "
        f"With PyTorch for NVIDIA GPUs, it downloads {cuda.download / 1e6:.0f} MB, which take "
        f"{cuda.disk / 1e6:.0f} MB. (These are the sizes of the wheels for Python "
        f"{measured['env']['python'].rpartition('.')[0]} on Linux, x86-64, "
        f"{measured['env']['date']}, by `python -m bench.downloads`.)"
    )


if __name__ == "__main__":
    main("bench.downloads", __doc__, RECORD, measure, sentence)
