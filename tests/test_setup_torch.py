"""PyTorch for the machine at hand: an index of two wheels, and the machines of other people."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pip
import pytest
from requirements import install
from wheels import write_wheel

ROOT = Path(install.__file__).parents[1]
RECORD = install.RECORD.relative_to(ROOT)
CPUS, GPUS = f"torch-{install.TORCH}+cpu", f"torch-{install.TORCH}"


class Machine:
    """Somebody's machine: what `uname` and the driver say there, and what pip can reach."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.asked: list[str] = []
        for index, name in (("pytorch", CPUS), ("everybody", GPUS)):
            (folder / "index" / index / "torch").mkdir(parents=True)
            write_wheel(folder / "index" / index / "torch", *name.split("-"))
        self.interrupted: list[str] = []  # paths that end in these are not served once
        self.refused: list[str] = []  # paths that begin with these are never served
        asked, interrupted, refused = self.asked, self.interrupted, self.refused

        class Index(SimpleHTTPRequestHandler):
            def do_GET(self):
                if self.path.startswith(tuple(refused)):
                    return self.send_error(403)
                for end in interrupted:
                    if self.path.replace("%2B", "+").endswith(end):
                        interrupted.remove(end)
                        return self.send_error(503)
                return super().do_GET()

            def log_message(self, *_):
                if self.path.endswith(".whl"):
                    asked.append(self.path.replace("%2B", "+").rsplit("/", 1)[1])

        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Index, directory=folder / "index")
        )
        threading.Thread(target=self.server.serve_forever).start()
        self.index = f"http://127.0.0.1:{self.server.server_port}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        for name in (
            "requirements/install.py",
            "requirements.txt",
            "requirements/constraints.txt",
            RECORD,
        ):
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "clone" / name).write_bytes((ROOT / name).read_bytes())
        (folder / "bin").mkdir()
        (folder / "packages").mkdir()
        (folder / "packages/pip").symlink_to(Path(pip.__file__).parent)

    def has(self, program: str, output: str) -> None:
        path = self.folder / "bin" / program
        path.write_text(f"#!/bin/sh\necho {output}\n")
        path.chmod(0o755)

    def install(self, uname: str, driver: str = "", **environ: str) -> subprocess.CompletedProcess:
        self.has("uname", uname)
        if driver:
            self.has("nvidia-smi", driver)
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TORCH"))}
        return subprocess.run(
            [self.folder / "venv/bin/python", "-c",
             "from requirements import install; install.install_torch(install.chosen())"],
            cwd=self.folder / "clone", capture_output=True, text=True, timeout=60,
            env=mine | {
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{self.folder / 'packages'}",
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_CACHE_DIR": "1",
                "PIP_INDEX_URL": f"{self.index}/everybody",
                "TORCH_INDEX": f"{self.index}/pytorch",
            } | environ,
        )  # fmt: skip

    def installed(self) -> list[str]:
        found = (self.folder / "venv").glob("lib/python*/site-packages/torch*.dist-info")
        return [path.name.removesuffix(".dist-info") for path in found]


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.server.shutdown()
    machine.server.server_close()


@pytest.mark.parametrize("system", ["Linux x86_64", "Linux aarch64"])
def test_without_an_nvidia_gpu_pytorch_for_cpus_comes(machine, system):
    done = machine.install(system)
    assert done.returncode == 0, done.stderr
    assert machine.asked == [f"{CPUS}-py3-none-any.whl"]
    assert machine.installed() == [CPUS]
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"Installing PyTorch {install.TORCH} for CPUs: 0.")


def test_with_an_nvidia_gpu_everybodys_comes(machine):
    done = machine.install("Linux x86_64", driver="535.104.05")
    assert machine.asked == [f"{GPUS}-py3-none-any.whl"]
    assert machine.installed() == [GPUS]
    (line,) = done.stdout.splitlines()
    assert "needs driver 580 or newer (here 535.104.05): " in line
    assert re.search(r"\d\.\d GB to download, \d\.\d GB on disk", line)


@pytest.mark.slow
def test_the_reader_can_ask_for_the_other(machine):
    for asked, wanted in (("cpu", CPUS), ("cuda", GPUS), ("cpu", CPUS)):
        done = machine.install("Linux x86_64", driver="580.65.06", TORCH=asked)
        assert done.returncode == 0, done.stderr
        assert machine.installed() == [wanted]


def test_pytorch_for_gpus_is_not_replaced_by_a_file_on_this_disk(machine, tmp_path):
    """pip takes 2.13.0+cpu for newer than 2.13.0."""
    machine.install("Linux x86_64", TORCH="cuda", PIP_FIND_LINKS=f"{tmp_path}/index/pytorch/torch")
    assert machine.installed() == [GPUS]


def test_where_pytorchs_index_is_out_of_reach_pip_takes_what_it_has(machine):
    nowhere = "http://127.0.0.1:9/whl/cpu"
    done = machine.install("Linux x86_64", TORCH_INDEX=nowhere)
    assert machine.installed() == [GPUS]
    assert done.stdout.splitlines()[1] == (
        f"{nowhere} doesn't have PyTorch {install.TORCH}: using the build that pip finds ..."
    )


def test_a_download_that_was_interrupted_is_tried_again_before_one_of_gigabytes(machine):
    machine.interrupted.append(f"{CPUS}-py3-none-any.whl")
    done = machine.install("Linux x86_64")
    assert done.returncode == 0, done.stderr
    assert machine.interrupted == []
    assert set(machine.asked) == {f"{CPUS}-py3-none-any.whl"}
    assert machine.installed() == [CPUS]


def test_where_pytorchs_index_refuses_it_says_so_before_pip_takes_what_it_has(machine):
    machine.refused.append("/pytorch/")
    done = machine.install("Linux x86_64")
    assert machine.installed() == [GPUS]
    _, why, then = done.stdout.splitlines()
    assert why.startswith(
        f"{machine.index}/pytorch can't be used: {machine.index[7:]} refuses this"
    )
    assert "TORCH_INDEX" in why
    assert then.endswith("using the build that pip finds ...")


@pytest.mark.slow
def test_where_pytorchs_index_breaks_off_for_good_pip_says_so(machine):
    machine.interrupted.extend([f"{CPUS}-py3-none-any.whl"] * 9)
    done = machine.install("Linux x86_64", PIP_RETRIES="1")
    assert done.returncode == 1
    assert "pip could not install PyTorch" in done.stderr
    assert machine.installed() == []


def test_a_mac_takes_everybodys(machine):
    machine.install("Darwin arm64")
    assert machine.asked == [f"{GPUS}-py3-none-any.whl"]


NOT_FOR = f"PyTorch {install.TORCH} has no build for"
NOWHERE = {
    ("Darwin x86_64", ""): f"{NOT_FOR} Intel Macs, or for Python under Rosetta: "
    "use the container of .devcontainer",
    ("Darwin arm64", "cuda"): f"TORCH=cuda: {NOT_FOR} NVIDIA GPUs on macOS",
    ("Linux riscv64", ""): f"{NOT_FOR} Linux on riscv64: "
    "use Linux on x86-64 or ARM, or macOS on Apple silicon",
    (
        "Linux x86_64",
        "gpu",
    ): "TORCH=gpu: must be cpu or cuda. Without TORCH, the build fits this machine",
}


@pytest.mark.parametrize(("system", "asked"), NOWHERE)
def test_where_there_is_none_one_line_says_so(machine, system, asked):
    done = machine.install(system, TORCH=asked)
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", f"{NOWHERE[system, asked]}\n")
    assert machine.asked == []


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_room_that_the_readme_names_is_what_is_checked(kind, monkeypatch):
    readme = " ".join((ROOT / "README.md").read_text().split())
    said = {"cpu": r"(\d+) GB of disk", "cuda": r"NVIDIA GPU it is (\d+) GB"}
    assert int(re.search(said[kind], readme)[1]) == install.room(kind)
    usage = install.shutil.disk_usage(ROOT)
    for spare in (-1, 1):
        free = usage._replace(free=install.room(kind) * 1e9 + spare)
        monkeypatch.setattr(install.shutil, "disk_usage", lambda _, free=free: free)
        if spare > 0:
            install.check_room(kind)
        else:
            with pytest.raises(SystemExit, match=f"Less than {install.room(kind)} GB free"):
                install.check_room(kind)


def test_the_sizes_are_of_the_pytorch_that_is_installed():
    recorded = json.loads(install.RECORD.read_text())
    assert recorded["torch"] == install.TORCH


def test_the_driver_that_is_asked_for_is_that_of_its_cuda():
    """Of CUDA 12 it was 525, of 13 it is 580: the next one needs another again."""
    pins = (ROOT / "requirements/constraints.txt").read_text()
    assert re.search(r"^cuda-toolkit==(\d+)", pins, re.MULTILINE)[1] == str(install.CUDA)


def test_binder_gets_the_same(tmp_path):
    """repo2docker runs this script in the repository, with the Python of its kernels."""
    assert {path.name for path in (ROOT / ".binder").iterdir()} == {"postBuild", "runtime.txt"}
    told = tmp_path / "python"
    told.write_text('#!/bin/sh\necho "python $@"\n')
    told.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".binder/postBuild"], cwd=ROOT, capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "python requirements/install.py\n"
