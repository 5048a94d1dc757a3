"""code/scripts/check_cluster.py under torchrun: to its end, killed on the way, beside torch."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import torch.distributed as dist
from ports import free_port

from distributed.runtime import group as names
from playground.lab.one_host import SCRIPTS, as_module, torchrun

SCRIPT = str(SCRIPTS / "check_cluster.py")
SCHEMA = json.loads((SCRIPTS / "check_cluster.schema.json").read_text())
PATIENCE = 240  # s; a slow machine is not a failure


class Job:
    """torchrun with a few ranks, and the report that they write."""

    def __init__(self, folder: Path, ranks: int, *words: str, restarts: int = 0):
        self.folder, self.json = folder, folder / "report.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", SCRIPT]
        given = ["--json", str(self.json), "--shared", str(folder), *words]
        self.mark = f"CHECK_CLUSTER_TEST={folder}"
        env = os.environ | {"OMP_NUM_THREADS": "1", "CHECK_CLUSTER_TEST": str(folder)}
        self.torchrun = subprocess.Popen(
            [*torchrun, *given], env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        report = json.loads(self.json.read_text())
        jsonschema.validate(report, SCHEMA)
        return report

    def until(self, stage: str) -> dict[str, Any]:
        """Wait for a stage that begins so."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.torchrun.poll() is None:
            if self.json.exists() and self.report()["stage"].startswith(stage):
                return self.report()
            time.sleep(0.02)
        raise TimeoutError(stage)

    def rank(self, rank: int) -> int:
        """Its process id."""
        for pid in self.processes():
            environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if f"RANK={rank}" in environ and "--load-pictures" not in words:
                return pid
        raise ProcessLookupError(rank)

    def processes(self) -> list[int]:
        """Whatever this job has started and has not ended."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (entry / "environ").read_text().split("\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def wait(self) -> str:
        return self.torchrun.communicate(timeout=PATIENCE)[0]

    def left(self) -> list[int]:
        """What lives a while after torchrun has ended."""
        end = time.monotonic() + 20
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        return self.processes()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(ranks: int, *words: str, **more: Any) -> Job:
        started.append(Job(tmp_path, ranks, *words, **more))
        return started[-1]

    yield start
    for one in started:
        one.torchrun.kill()
        one.torchrun.communicate()
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)


ALL = {"shm", "matmul", "storage", "loader", "inside", "collectives", "overlap", "counters"}


def test_two_ranks_come_to_the_end_and_leave_nothing(job, tmp_path: Path) -> None:
    run = job(2)
    said = run.wait()
    report = run.report()
    assert report["finished"], said
    assert report["found"].keys() >= ALL
    assert [one["rank"] for one in report["ranks"]] == [0, 1]
    assert {one["name"] for one in report["found"]["collectives"]} == {
        "all-reduce", "all-gather", "reduce-scatter"}  # fmt: skip
    assert all(one["right"] for one in report["found"]["collectives"])
    assert "ok    collectives" in said
    bad = [one for one in report["verdicts"] if one["level"] == "bad"]
    assert (run.torchrun.returncode == 0) == (report["status"] == 0) == (not bad)
    assert not run.left()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
def test_eight_ranks_are_done_in_five_minutes(job) -> None:
    run = job(8)
    said, report = run.wait(), run.report()
    assert report["finished"], said
    assert report["seconds"] < 300
    assert len(report["ranks"]) == 8


@pytest.mark.slow
def test_a_killed_rank_is_named_and_nobody_is_left(job) -> None:
    run = job(2)
    run.until("matmul")
    os.kill(run.rank(1), signal.SIGKILL)
    said = run.wait()
    report = run.report()
    assert (report["finished"], report["stage"], report["status"]) == (False, "matmul", 2)
    assert [one["rank"] for one in report["missing"]] == [1], said
    assert 'Not finished, in the stage "matmul"' in said
    assert not run.left()


STAGES = ["who", "shm", "matmul", "storage", "loader", "pairs inside", "all-reduce", "overlap"]


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["rank 0", "rank 1", "torchrun", "torchrun, by SIGTERM"])
@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_every_stage(job, stage: str, whom: str) -> None:
    run = job(2)
    run.until(stage)
    victim = run.rank(int(whom[-1])) if whom.startswith("rank") else run.torchrun.pid
    os.kill(victim, signal.SIGTERM if "SIGTERM" in whom else signal.SIGKILL)
    run.wait()
    assert not run.left()
    report = run.report()
    assert not report["finished"]
    order = [stage for stage in STAGES if report["stage"].startswith(stage)]
    assert order, report["stage"]
    assert STAGES.index(order[0]) >= STAGES.index(stage), "short stages may end meanwhile"
    if whom == "rank 1":
        assert [one["rank"] for one in report["missing"]] == [1]


@pytest.mark.slow
def test_kill_and_resume(job, tmp_path: Path) -> None:
    run = job(2, "--no-loader", restarts=1)
    said = run.wait()
    report = run.report()
    assert report["finished"], said
    assert report["found"]["kill"]["back_s"] > 0
    assert "rank 1 was killed; all were back" in said
    assert not run.left()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_missed(tmp_path: Path) -> None:
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": "0"}  # fmt: skip
    words = [sys.executable, SCRIPT, "--json", str(tmp_path / "report.json"), "--join", "3"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert done.returncode == 2
    assert [one["rank"] for one in report["missing"]] == [1, 2]
    assert "ranks 1 and 2 didn't join" in done.stdout


@pytest.mark.slow
def test_a_rank_that_is_still_importing_is_named_with_its_host(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    env = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    words = [sys.executable, SCRIPT, "--json", str(tmp_path / "report.json"), "--join", "10"]
    slow = subprocess.Popen(words, env=env | {"RANK": "1", "PYTHONPATH": str(tmp_path)})
    try:
        given = {"env": env | {"RANK": "0"}, "timeout": PATIENCE, "check": False}
        said = subprocess.run(words, capture_output=True, text=True, **given).stdout
    finally:
        slow.kill()
        slow.wait()
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    (missing,) = report["missing"]
    assert (missing["host"], missing["doing"]) == (socket.gethostname(), "importing torch")
    assert f'rank 1 on {socket.gethostname()} last reported "importing torch"' in said


@pytest.mark.slow
def test_an_address_that_leads_nowhere_is_one_line() -> None:
    env = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(free_port())}
    words = [sys.executable, SCRIPT, "--join", "2"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    address = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']} can't be reached (MASTER_ADDR must be"
    assert line.startswith(f"rank 1 on {socket.gethostname()}: {address} rank 0's host): ")


TIMES, PAIRS = 1, 600


def beside_torchs_own_loop(name: str, size: int) -> list[float]:
    """How long the check's loop takes, and one over `torch.distributed`, in turns."""
    check = as_module(SCRIPTS / "check_cluster.py")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    member = check.Member(check.Me(rank, ranks, rank, cpu=True), None, None, None)
    member.world = dist.group.WORLD._get_backend(torch.device("cpu"))
    on = check.Collectives(member, size)
    whole, part = on.whole, on.part  # the same memory: another is some per cent faster or slower
    calls: dict[str, Callable[[], Any]] = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: names._all_gather(whole, part),
        "reduce-scatter": lambda: names._reduce_scatter(part, whole),
    }

    def torchs() -> float:
        dist.all_reduce(torch.ones(1))
        begin = time.monotonic()
        for _ in range(TIMES):
            calls[name]()
        took = (time.monotonic() - begin) / TIMES
        whole.fill_(1)
        return took

    def ours() -> float:
        return on.seconds(name, TIMES)

    found: dict[str, list[float]] = {"ours": [], "torch's": []}
    for number in range(PAIRS):
        for one in (ours, torchs) if number % 2 else (torchs, ours):
            found["ours" if one is ours else "torch's"].append(one())
    return [statistics.quantiles(took, n=10)[0] for took in found.values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all-reduce", "all-gather", "reduce-scatter"])
def test_its_bandwidth_is_that_of_torchs_own_loop(name: str) -> None:
    """Within 5%, the same bytes in the same ranks, in turns. Of each the first decile: the rest
    measures what else the machine does."""
    ours, torchs = torchrun(beside_torchs_own_loop, name, 4 << 20, ranks=2, timeout=PATIENCE)[0]
    assert ours == pytest.approx(torchs, rel=0.05)
