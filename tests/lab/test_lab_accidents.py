"""Ranks and hosts that die while they train: what was committed stays, and so does the curve."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed.elastic import train_rank
from playground.lab.accidents import Training
from playground.lab.hosts import laboratory

pytestmark = [pytest.mark.usefixtures("hosts"), pytest.mark.slow]
BATCH, UNTIL, EVERY = 256, 24, 3


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name, "run")


def uninterrupted(pools, folder: Path) -> list[float]:
    return pools[2](train_rank, str(folder), 3, BATCH, UNTIL, EVERY)[0]


def test_killed_ranks_lose_no_committed_step_and_leave_the_curve_to_the_bit(
    folder: Path, tmp_path: Path, pools
) -> None:
    expected = uninterrupted(pools, tmp_path / "once")
    chance = random.Random(0)
    with laboratory(2) as lab:
        training = Training(lab, folder, per_host=1, fewest=2, until=UNTIL, every=EVERY, pace=0.15)
        begin = 0
        for kill in range(2):
            training.wait_for_step(begin + EVERY + 1)
            committed = training.committed()
            ranks = {rank: pid for host in lab.hosts for rank, pid in host.ranks().items()}
            assert sorted(ranks) == [0, 1]
            os.kill(ranks[chance.randrange(2)], signal.SIGKILL)
            training.wait_for(r"2 ranks · gloo · CPU · torchrun")
            _, begin = training.wait_for_start(2)
            assert begin > committed > 0, f"kill {kill}: what was committed is not done again"
        assert training.wait_for_end() == expected
        for process in training.processes:
            process.wait(20)
        assert not [rank for host in lab.hosts for rank in host.ranks()], "no rank is left"


def test_a_host_that_is_cut_off_is_left_out_and_comes_back(
    folder: Path, tmp_path: Path, pools
) -> None:
    """From 4 ranks to 3, and to 4 again: the curve of one run, but for rounding."""
    expected = uninterrupted(pools, tmp_path / "once")
    with laboratory(2) as lab:
        training = Training(
            lab, folder, per_host=(3, 1), until=UNTIL, every=EVERY, pace=0.4, patience=4
        )
        training.wait_for_start(4)
        training.wait_for_step(EVERY + 1)
        lab.hosts[1].cut()
        cut = time.monotonic()
        committed = training.committed()
        line, begin = training.wait_for_start(3)
        assert line.at > cut
        assert begin == committed + 1
        training.wait_for_step(begin + EVERY)
        lab.hosts[1].mend()
        _, again = training.wait_for_start(4)
        assert again > begin
        losses = training.wait_for_end()
    assert losses == pytest.approx(expected, rel=1e-4)


def test_without_the_host_where_all_meet_the_others_end_and_a_new_start_goes_on(
    folder: Path, tmp_path: Path, pools
) -> None:
    expected = uninterrupted(pools, tmp_path / "once")
    with laboratory(3) as lab:
        training = Training(lab, folder, per_host=1, fewest=3, until=UNTIL, every=EVERY, pace=0.2)
        training.wait_for_step(EVERY + 1)
        lab.hosts[0].kill()
        for process in training.processes[1:]:
            assert process.wait(60) != 0, "torchrun says that it failed"
        committed = training.committed()
        assert committed >= EVERY
        lab.hosts = lab.hosts[1:]
        training = Training(lab, folder, per_host=1, fewest=2, until=UNTIL, every=EVERY)
        assert training.wait_for_start(2)[1] == committed + 1
        assert training.wait_for_end() == pytest.approx(expected, rel=1e-4)
