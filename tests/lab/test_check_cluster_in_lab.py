"""code/scripts/check_cluster.py on hosts of the laboratory that are ill: it names which, and why.

Each case draws the host and how ill it is, at five times the noise or more, and nothing else may be
called bad. What it concludes from a report alone is in tests/scripts/test_check_cluster_verdicts.
"""

import json
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from playground.lab import illnesses
from playground.lab.hosts import Laboratory, laboratory
from playground.lab.one_host import SCRIPTS
from playground.server.limits import has_ended

SCHEMA = json.loads((SCRIPTS / "check_cluster.schema.json").read_text())
SCRIPT = str(SCRIPTS / "check_cluster.py")
PATIENCE = 400  # s; 30 beside nothing else, and a slow machine is not a failure
LINK = 300  # Mbit/s
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hosts")]


class Ill(NamedTuple):
    """What was planted, and what has to be found: the kind, and where."""

    what: str
    kind: str
    where: list[Any]


Draw = Callable[[random.Random, Laboratory, ExitStack], tuple[Ill, dict[str, Any]]]


def slow_link(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    host, times = drawn.choice(lab.hosts), drawn.uniform(5, 10)
    host.limit(f"{LINK / times:.0f}Mbit")
    return Ill(f"{host.name} is {times:.1f} times slower", "slow link", [host.name]), {}


def drops(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    host, share = drawn.choice(lab.hosts[1:]), drawn.uniform(0.05, 0.12)
    illnesses.losing_frames(host, share, seed=drawn.randrange(1 << 30))
    return Ill(f"{host.name} loses {share:.0%}", "drops", [host.name]), {}


def slow_rank(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    rank, share = drawn.randrange(1, len(lab.hosts)), drawn.uniform(0.03, 0.08)

    def throttle(running: illnesses.Check) -> AbstractContextManager[None]:
        return illnesses.throttled(running, rank, share)

    return Ill(f"rank {rank} runs {share:.0%} of the time", "slow rank", [rank]), {
        "during": throttle}  # fmt: skip


def little_shm(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    host, left = drawn.choice(lab.hosts), drawn.randrange(1, 12)
    illnesses.little_shm(host, 64, left)
    return Ill(f"{host.name} has {left} MiB of /dev/shm left", "shm", [host.name]), {}


def wrong_clock(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    host, seconds = drawn.choice(lab.hosts), drawn.choice([-1, 1]) * drawn.uniform(5, 5000)
    env = {host.number: illnesses.wrong_clock(seconds)}
    return Ill(f"{host.name} is {seconds:+.1f} s off", "clock", [host.name]), {"env": env}


STAGES = ("shm", "matmul", "storage", "small messages", "pairs of hosts", "all-reduce", "overlap")


def power_cut(drawn: random.Random, lab: Laboratory, _: ExitStack) -> tuple[Ill, dict[str, Any]]:
    host, stage = drawn.choice(lab.hosts[1:]), drawn.choice(STAGES)
    ill = Ill(f"{host.name} dies in the stage {stage}", "missing", [host.name])
    return ill, {"dies": (host, stage)}


DRAWS: list[Draw] = [slow_link, drops, slow_rank, little_shm, wrong_clock, power_cut]


def findings(report: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    jsonschema.validate(report, SCHEMA)
    return [(one["kind"], one["where"]) for one in report["verdicts"] if one["level"] == "bad"]


@pytest.mark.parametrize("number", range(20))
def test_what_is_ill_is_named_and_nothing_else(number: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    drawn, plant = random.Random(seed), DRAWS[number % len(DRAWS)]
    with laboratory(drawn.choice([3, 4]), f"{LINK}Mbit") as lab, ExitStack() as stack:
        ill, how = plant(drawn, lab, stack)
        words = [] if ill.kind == "shm" else ["--no-loader"]
        check = stack.enter_context(illnesses.check(lab, *words, env=how.get("env")))
        if "during" in how:
            stack.enter_context(how["during"](check))
        if "dies" in how:
            host, stage = how["dies"]
            check.reach(stage, PATIENCE)
            host.lose_power()
        said = check.wait(PATIENCE)
        report = check.report()
        up = [host for host in lab.hosts if host is not how.get("dies", (None,))[0]]
        left = [
            pid
            for host in up
            for pid in host.processes()
            if pid != host.first and not has_ended(pid)
        ]  # nobody reaps orphans there
    case = f"{ill.what}, {len(lab.hosts)} hosts, seed {seed}:\n{said}"
    assert findings(report) == [(ill.kind, ill.where)], case
    assert report["status"] == (2 if ill.kind == "missing" else 1), case
    if ill.kind == "missing":
        assert "Not finished, in the stage " in said, case
    assert not left, f"{case}{left}"


@pytest.mark.parametrize("number", range(3))
def test_of_hosts_that_are_well_it_says_nothing(number: int) -> None:
    with laboratory(2 + number, f"{LINK}Mbit") as lab, illnesses.check(lab) as check:
        said = check.wait(PATIENCE)
        assert findings(check.report()) == [], said
        assert check.report()["status"] == 0, said


def test_when_the_first_host_dies_the_others_say_so_and_end() -> None:
    """It has the report: what it has found by then is on disk."""
    with laboratory(3, f"{LINK}Mbit") as lab, illnesses.check(lab, "--no-loader") as check:
        check.reach("pairs of hosts", PATIENCE)
        lab.hosts[0].lose_power()
        for rank in (1, 2):
            said = check.ranks[rank].communicate(timeout=PATIENCE)[0]
            assert check.ranks[rank].returncode == 2
            assert "rank 0 can't be reached" in said
        report = check.report()
        jsonschema.validate(report, SCHEMA)
        assert report["stage"].startswith("pairs of hosts")
        assert not report["finished"]
        assert {"clocks", "shm", "matmul", "storage"} <= report["found"].keys()


def test_ranks_that_slurm_starts_reach_each_other(tmp_path: Path) -> None:
    """By its variables alone: nobody names MASTER_ADDR."""
    words = [sys.executable, SCRIPT, "--no-loader", f"--json={tmp_path / 'report.json'}"]
    with laboratory(2, "100Mbit") as lab:
        given = {"SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
        given["SLURM_LAUNCH_NODE_IPADDR"] = lab.hosts[0].address
        given["GLOO_SOCKET_IFNAME"] = "eth0"
        ranks = [
            host.popen([*words, "--shared", str(tmp_path)], given | {"SLURM_PROCID": f"{rank}"})
            for rank, host in enumerate(lab.hosts)
        ]
        for rank in ranks:
            rank.wait(timeout=PATIENCE)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["finished"]
    assert [one["with"] for one in report["found"]["lost"]] == [1, 0]
    assert not any("problem" in one for one in report["found"]["lost"])
    assert "on one host" in report["skipped"]["kill"]


def test_two_hosts_of_one_name_are_two(tmp_path: Path) -> None:
    """As clones of one image are: else nothing between them would be looked at."""
    with laboratory(2, f"{LINK}Mbit") as lab:
        for host in lab.hosts:
            host.run("hostname", "localhost")
            host.run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
        with illnesses.check(lab, "--no-loader", f"--shared={tmp_path}") as check:
            check.wait(PATIENCE)
            both = [["localhost 10.77.0.1", "localhost 10.77.0.2"]]
            assert ("not shared", both) in findings(check.report())  # a busy machine finds more
