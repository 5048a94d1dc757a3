"""Jobs that hang for one planted reason: the page's line leads to the rank and its line."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("hanging_job.py")
PAGE = Path(__file__).parents[2] / "book/at_scale/why_it_hangs.md"
HANGS = {"skip": 2, "data": 1, "lock": 3}  # the rank that is to be found
RANKS = 4


def listing() -> str:
    """The loop of the page that asks each process for its stack."""
    (loop,) = re.findall(
        r"^for pid in .*?py-spy dump.*?^done$", PAGE.read_text("utf-8"), re.M | re.S
    )
    return loop


def stacks(job: str) -> str:
    """What that line prints."""
    asked = listing().replace("python.*train.py", f"python.*{job}")
    assert job in asked
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # py-spy stands there
    done = subprocess.run(
        ["bash"],
        input=asked,  # and not in the command, where pgrep would find it
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission" in done.stderr:
        pytest.skip("other processes may not be read here (ptrace)")
    return done.stdout


def lines_of_yours(printed: str, file: str) -> dict[int, int]:
    """As the page says to read them: of each rank, the first line of the reader's own file."""
    found = {}
    for rank, stack in re.findall(r"^RANK=(\d+)\0?\n(.*?)(?=^RANK=|\Z)", printed, re.M | re.S):
        found[int(rank)] = int(re.findall(rf"\({re.escape(file)}:(\d+)\)", stack)[0])
    return found


def line_that_hangs(rank: int) -> int:
    lines = JOB.read_text("utf-8").splitlines()
    (found,) = [at for at, line in enumerate(lines, 1) if f"# rank {rank} hangs here" in line]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("again", range(3))
@pytest.mark.parametrize("reason", HANGS)
def test_the_stacks_lead_to_the_rank_and_to_its_line(tmp_path, reason, again):
    job = tmp_path / "train.py"  # a path of its own: no other job is asked
    job.write_text(JOB.read_text("utf-8"), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [f"--nproc-per-node={RANKS}", "--local-addr=127.0.0.1"]
    command = [*torchrun, *options, str(job), reason, str(tmp_path)]
    agent = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 200
        lines: dict[int, int] = {}
        while time.monotonic() < deadline:
            time.sleep(2)
            if len([*tmp_path.glob("*.trains")]) < RANKS:
                continue
            before, lines = lines, lines_of_yours(stacks(str(job)), job.name)
            if len(lines) == RANKS and lines == before:  # nobody has moved
                break
        assert len(lines) == RANKS
        (common, count), *_ = Counter(lines.values()).most_common()
        assert count == RANKS - 1, lines
        assert {r: line for r, line in lines.items() if line != common} == {
            HANGS[reason]: line_that_hangs(HANGS[reason])
        }
    finally:
        os.killpg(agent.pid, signal.SIGKILL)  # torchrun's ranks are in groups of their own
        for rank in ranks_of(str(job)):
            os.kill(rank, signal.SIGKILL)
        agent.wait()


def ranks_of(job: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", job], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
