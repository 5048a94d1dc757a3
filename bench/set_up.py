"""What the set-up downloads, and how long it takes: `python -m bench.set_up sizes|clone --record`.

`sizes` sums up the packages for Linux on x86-64 and the Python that runs this, with PyTorch for
CPUs and for GPUs. `uv`, which `make constraints` installs, names the wheels and their sizes on the
package index, and the table of contents at the end of a wheel says what it unpacks to, so that only
PyTorch's wheel for CPUs has to be downloaded. `requirements/install.py` reads the record.

`clone` clones the last commit into a new folder, runs `make serve` there, opens the page in a
browser and presses Run: immediately, and again after some seconds of reading. Packages come from
where pip finds them on this machine.

`--record` keeps the result in `bench/recorded` and writes its sentence into *Running the book*.
"""

import argparse
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from playwright.sync_api import sync_playwright
from requirements.install import CONSTRAINTS, CPU_INDEX, TORCH, Size

from bench.live import OPTIONS, PAGE, READING, LivePage, press
from bench.pairs import ROOT
from playground.browser import find_browser
from playground.environment import environment

ON_PAGE = ROOT / "book/maintainers/running.md"
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


def sizes() -> dict[str, Any]:
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


def press_as_reader(url: str, reading: float) -> float:
    """Seconds from Run to the output, on the page in a new browser, after `reading` seconds."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS)
        context = browser.new_context()
        context.new_page().goto(url)  # which knows names below localhost
        page = LivePage(context.new_page(), url.split("/?")[0]).open(PAGE)
        page.page.wait_for_timeout(1000 * reading)
        waited = press(page)
        assert "[rank 3]" in page.output(0)
        browser.close()
    return waited


def clone() -> dict[str, Any]:
    """Seconds of each part, from `git clone` to the output of four ranks."""
    marks = {"start": time.perf_counter()}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", ROOT, Path(folder, "clone")], check=True)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "VIRTUAL"))}
        server = subprocess.Popen(
            ["make", "serve", "PORT=0", "BROWSER=true"],  # a command that opens nothing
            cwd=Path(folder, "clone"), env=environ, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert server.stdout
            for line in server.stdout:
                marks.setdefault(
                    "open" if line.startswith("Open") else line.strip(), time.perf_counter()
                )
                print(line, end="", flush=True)
                if "open" in marks:
                    break
            else:
                raise SystemExit("make serve ended before it printed the address")
            first_run = press_as_reader(line.split()[1], 0)
            marks["end"] = time.perf_counter()
            run_after_reading = press_as_reader(line.split()[1], READING)
            log = Path(folder, "clone/_build/pip.log").read_text()
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(20)
    names = re.findall(r"^Successfully installed (.*)", log, flags=re.M)
    downloaded = len(re.findall(r"^ *Downloading ", log, flags=re.M))
    return {
        "total_s": marks["end"] - marks["start"],
        "build_s": marks["open"]
        - next(at for name, at in marks.items() if name.startswith("Building")),
        "first_run_s": first_run,
        "run_after_reading_s": run_after_reading,
        "packages": {"installed": len(" ".join(names).split()), "downloaded": downloaded},
        "env": environment(),
    }


def sentence_of_sizes(measured: dict[str, Any]) -> str:
    cpu, cuda = (Size(**measured["wheels"][kind]) for kind in ("cpu", "cuda"))
    return (
        f"With PyTorch {measured['torch']} for CPUs, the set-up downloads "
        f"{cpu.download / 1e6:.0f} MB of packages, which take {cpu.disk / 1e6:.0f} MB on disk. "
        f"With PyTorch for NVIDIA GPUs, it downloads {cuda.download / 1e6:.0f} MB, which take "
        f"{cuda.disk / 1e6:.0f} MB. (These are the sizes of the wheels for Python "
        f"{measured['env']['python'].rpartition('.')[0]} on Linux, x86-64, "
        f"{measured['env']['date']}, by `python -m bench.set_up sizes`.)"
    )


def sentence_of_clone(measured: dict[str, Any]) -> str:
    env, packages = measured["env"], measured["packages"]
    return (
        f"From `git clone` to the first live output, it takes {measured['total_s']:.0f} s, "
        f"including {measured['build_s']:.0f} s for the build. From pressing Run to the output of "
        f"four ranks, it takes {measured['first_run_s']:.1f} s if you press as soon as the page is "
        f"there, and {measured['run_after_reading_s']:.1f} s after {READING} s of reading. (This "
        f"is one run of `python -m bench.set_up clone` on {env['cores']} cores of {env['cpu']} "
        f"with torch {env['torch']}, {env['date']}. It downloaded {packages['downloaded']} of "
        f"{packages['installed']} packages, and found the others on its disk.)"
    )


PARTS = {"sizes": (sizes, sentence_of_sizes), "clone": (clone, sentence_of_clone)}


def record_of(part: str) -> Path:
    """The file that keeps what was measured."""
    return ROOT / f"bench/recorded/{part}.json"


def write_on_page(part: str, sentence: str) -> None:
    """Put the sentence between the part's marks on the page."""
    marks = rf"(<!-- {part} -->\n).*?(<!-- end -->)"
    text = re.sub(
        marks, lambda match: f"{match[1]}{sentence}\n{match[2]}", ON_PAGE.read_text(), flags=re.S
    )
    ON_PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.set_up", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    kept = "keep the result in bench/recorded, and update the page"
    parser.add_argument("--record", action="store_true", help=kept)
    options = parser.parse_args()
    measure, sentence = PARTS[options.part]
    measured = measure()
    print(sentence(measured))
    if options.record:
        record_of(options.part).write_text(json.dumps(measured, indent=1) + "\n")
        write_on_page(options.part, sentence(measured))


if __name__ == "__main__":
    main()
