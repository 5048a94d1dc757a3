"""code/scripts/train.py under torchrun: killed, stopped, short of disk. No process is left."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rights import as_root, lacking
from safetensors.torch import load_file

from playground.lab.one_host import SCRIPTS
from playground.lab.rehearsal import SMALL
from playground.server.limits import has_ended

PATIENCE = 400  # s; a dozen beside nothing else, and a slow machine is not a failure
STEPS = 300
pytestmark = pytest.mark.slow


class Job:
    """torchrun with two ranks of train.py."""

    def __init__(self, data: str, run: Path, *words: str, restarts: int = 0):
        self.run = run
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node=2", f"--max-restarts={restarts}", str(SCRIPTS / "train.py")]
        given = [data, str(run), *SMALL, "--log-every=1", *words]
        env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen([*start, *given], env=env, **pipes)
        self.started: set[psutil.Process] = set()

    def steps(self) -> int:
        """How many the log tells of."""
        log = self.run / "log.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # the last one may be on its way
        return max((json.loads(line)["step"] for line in whole), default=0)

    def wait_for(self, step: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.steps() < step:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.01)
        self.started |= {*psutil.Process(self.process.pid).children(recursive=True)}

    def rank(self, number: int) -> psutil.Process:
        (found,) = [one for one in self.started if one.environ().get("RANK") == str(number)]
        return found

    def end(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=PATIENCE)[0]
        give_up = time.monotonic() + 60
        while not all(has_ended(one.pid) for one in self.started):
            assert time.monotonic() < give_up, "no process stays"
            time.sleep(0.05)
        return self.process.returncode, said


@pytest.fixture
def job(tokens: str, tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def start(*words: str, run: Path | None = None, **given: Any) -> Job:
        jobs.append(Job(tokens, run or tmp_path / "run", *words, **given))
        return jobs[-1]

    yield start
    for one in jobs:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        for process in one.started:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint, by way of the file that export.py makes of it."""
    file = run / "weights.safetensors"
    folder = run / (run / "latest").read_text()
    export = [sys.executable, str(SCRIPTS / "export.py"), str(folder), str(file)]
    subprocess.run(export, check=True, capture_output=True, timeout=PATIENCE)
    return load_file(file)


def losses_of(run: Path) -> dict[int, float]:
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def once(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happens to."""
    run = tmp_path_factory.mktemp("once") / "run"
    status, said = Job(tokens, run, f"--steps={STEPS}", "--save-every=20").end()
    assert status == 0, said
    assert len(losses_of(run)) == STEPS
    return run


def assert_equal(run: Path, once: Path, drawn: int) -> None:
    """To the last bit: all losses, and all weights."""
    assert losses_of(run) == losses_of(once), f"drawn: {drawn}"
    weights, expected = weights_of(run), weights_of(once)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights), f"drawn: {drawn}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_a_signal_stops_is_saved_and_goes_on(number, job, once, tmp_path) -> None:
    drawn = random.SystemRandom().randrange(1, STEPS - 50)
    words = [f"--steps={STEPS}", "--save-every=20"]
    stopped = job(*words)
    stopped.wait_for(drawn)
    stopped.process.send_signal(number)
    status, said = stopped.end()
    assert status != 0, "who starts it again has to know that it is not done"
    reached = int((tmp_path / "run/latest").read_text().removeprefix("step-"))
    assert drawn <= reached < STEPS
    line = f"train.py: stopped by a signal after saving step {reached}: "
    line += "run the same command again to continue"
    assert said.count(line) == 1
    status, said = job(*words).end()
    assert status == 0, said
    assert f"continues after step {reached}\n" in said
    assert_equal(tmp_path / "run", once, drawn)


def test_a_rank_that_is_killed_is_back_with_all_others(job, once, tmp_path) -> None:
    drawn = random.SystemRandom().randrange(25, STEPS - 50)
    killed = job(f"--steps={STEPS}", "--save-every=20", restarts=1)
    killed.wait_for(drawn)
    killed.rank(1).kill()
    status, said = killed.end()
    assert status == 0, said
    assert said.count("continues after step ") == 1
    assert_equal(tmp_path / "run", once, drawn)


def test_ranks_do_not_outlive_torchrun(job, once, tmp_path) -> None:
    orphaned = job(f"--steps={STEPS}", "--save-every=20")
    orphaned.wait_for(30)
    orphaned.process.kill()
    status, _ = orphaned.end()
    assert status == -signal.SIGKILL
    status, said = job(f"--steps={STEPS}", "--save-every=20").end()
    assert status == 0, said
    assert_equal(tmp_path / "run", once, 30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    as_root("mount", "-t", "tmpfs", "-o", "size=3m,mode=777", "tmpfs", str(disk))
    yield disk
    as_root("umount", str(disk))


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(job, small_disk) -> None:
    run = small_disk / "run"
    words = ["--steps=40", "--save-every=10"]
    ended = job(*words, run=run)
    ended.wait_for(12)
    while not (run / "latest").exists():
        time.sleep(0.01)
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - 60_000))  # less than one checkpoint takes
    status, said = ended.end()
    assert status == 1
    (line,) = [line for line in said.splitlines() if line.startswith("train.py: ")]
    assert "was not written (0.000 GiB are free there): " in line
    latest = run / (run / "latest").read_text()
    assert [path.name for path in run.glob("step-*")] == [latest.name], "what was begun is gone"
    (small_disk / "filler").unlink()
    status, said = job(*words, run=run).end()
    assert status == 0, said
    assert f"continues after step {int(latest.name[5:])}\n" in said


def test_what_is_wrong_with_a_file_is_one_line(tokens: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tokens, broken)
    file = broken / "train_1.bin"
    file.write_bytes(file.read_bytes()[:-100])
    status, said = Job(str(broken), tmp_path / "run").end()
    assert status == 1
    (line,) = [line for line in said.splitlines() if "damaged" in line]
    assert line.startswith(f"train.py: rank 0: {file}: damaged: ")
    assert "Traceback (most recent" not in said.split("ChildFailedError")[0].split(line)[0]


def test_srun_alone_starts_one_job_of_two_ranks(tokens: str, tmp_path: Path) -> None:
    """By Slurm's variables. Without them, each was a job of its own in the same folder."""
    words = [sys.executable, str(SCRIPTS / "train.py"), tokens, str(tmp_path / "run"), *SMALL]
    words += ["--log-every=1", "--steps=20"]
    env = os.environ | {"SLURM_NTASKS": "2", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    env |= {"SLURM_JOB_ID": str(random.SystemRandom().randrange(10000)), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [
        subprocess.Popen(words, env=env | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}, **pipes)
        for rank in "01"
    ]
    said = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0].startswith("2 ranks · ")
    assert "ranks" not in said[1]
    lines = (tmp_path / "run/log.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"loss"' in line]) == 20, "each step once"


def test_compiled_blocks_learn_the_same(job, tmp_path) -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists() or not any(map(shutil.which, ("g++", "clang++"))):
        lacking("a compiler for C++ and Python.h, which torch.compile needs")
    for run, how in (("plain", []), ("compiled", ["--compile", "--recompute"])):
        status, said = job("--steps=8", *how, run=tmp_path / run).end()
        assert status == 0, said
    expected, found = losses_of(tmp_path / "plain"), losses_of(tmp_path / "compiled")
    assert found.keys() == expected.keys() == {*range(1, 9)}
    assert [*found.values()] == pytest.approx([*expected.values()], rel=1e-2)
