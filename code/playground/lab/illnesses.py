"""Faulty hosts in the laboratory, and the cluster check that has to find them.

with laboratory(3, "300Mbit") as lab:
    losing_frames(lab.hosts[2], 0.1)
    print(Check(lab).wait())
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from playground.lab.hosts import Host, Laboratory
from playground.server.limits import has_ended

SCRIPT = Path(__file__).parents[2] / "scripts/check_cluster.py"
PACKET, VNET_HEADER, IGNORE_OUTGOING = 263, 15, 23  # from linux/if_packet.h


class Check:
    """The cluster check, running on all hosts of a laboratory, started without torchrun."""

    def __init__(
        self, lab: Laboratory, per_host: int = 1, *words: str,
        env: Mapping[int, Mapping[str, str]] | None = None,
    ):  # fmt: skip
        self.lab, self.folder = lab, tempfile.TemporaryDirectory()
        self.json = Path(self.folder.name, "report.json")
        ranks, port = per_host * len(lab.hosts), random.randrange(20_000, 29_000)
        given = [str(SCRIPT), "--shared", self.folder.name, "--json", str(self.json), *words]
        self.ranks: list[subprocess.Popen[str]] = []
        for rank in range(ranks):
            host = rank // per_host
            where = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % per_host,
                     "MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": port,
                     "GLOO_SOCKET_IFNAME": "eth0"}  # fmt: skip
            settings = {name: str(value) for name, value in where.items()}
            self.ranks.append(
                lab.hosts[host].popen(
                    [sys.executable, *given],
                    settings | dict((env or {}).get(host, {})),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )

    def report(self) -> dict[str, Any]:
        """The report on disk; empty before it exists."""
        return json.loads(self.json.read_text()) if self.json.exists() else {}

    def reach(self, stage: str, seconds: float = 240) -> dict[str, Any]:
        """Wait until a stage whose name begins with `stage` is running. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            report = self.report()
            if report.get("stage", "").startswith(stage):
                return report
            if self.ranks[0].poll() is not None:
                break
            time.sleep(0.05)
        raise TimeoutError(f"the check did not come to {stage!r}: {report.get('stage')}")

    def wait(self, seconds: float = 300) -> str:
        """Output of rank 0 after all ranks have ended. Raises TimeoutExpired."""
        said, until = "", time.monotonic() + seconds
        for rank, process in enumerate(self.ranks):
            text = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            said = text if rank == 0 else said
        return said

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()
        self.folder.cleanup()


@contextlib.contextmanager
def check(lab: Laboratory, *words: str, per_host: int = 1, **more: Any) -> Iterator[Check]:
    """Run a check that ends with the block."""
    made = Check(lab, per_host, *words, **more)
    try:
        yield made
    finally:
        made.close()


# --- Faults


def losing_frames(host: Host, share: float, seed: int = 0) -> subprocess.Popen[str]:
    """Put a process between a host and its switch that drops this share of all frames."""
    switch, port, number = host.switch, host.port, host.number
    ends = [f"in{number}", f"out{number}"]
    switch.run("ip", "link", "set", port, "nomaster")
    switch.run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    switch.run("ip", "link", "set", ends[0], "up")
    switch.run("ip", "link", "set", ends[1], "master", "switch", "up")
    words = [sys.executable, "-m", "playground.lab.illnesses", port, ends[0], str(share), str(seed)]
    box = subprocess.Popen(
        switch.command("env", f"PYTHONPATH={SCRIPT.parents[1]}", *words),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    host.started.append(box)
    assert box.stdout is not None
    if box.stdout.readline() != "ready\n":
        raise RuntimeError("no box between host and switch")
    return box


def box_that_loses(one: str, other: str, share: float, seed: int) -> None:
    """Forward frames between two network cards, except a random share of them."""
    drawn = random.Random(seed)
    ends = []
    for name in (one, other):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        end.setsockopt(PACKET, VNET_HEADER, 1)  # receive whole frames that the card would split
        end.setsockopt(PACKET, IGNORE_OUTGOING, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        end.bind((name, 3))  # ETH_P_ALL
        ends.append(end)

    def carry(start: socket.socket, to: socket.socket) -> None:
        while True:
            frame = start.recv(1 << 17)
            if drawn.random() >= share:
                with contextlib.suppress(OSError):  # the other end is down or full: lost, too
                    to.send(frame)

    threading.Thread(target=carry, args=ends, daemon=True).start()
    print("ready", flush=True)
    carry(ends[1], ends[0])


@contextlib.contextmanager
def throttled(running: Check, rank: int, share: float, period: float = 0.1) -> Iterator[None]:
    """Let a rank run for only this share of the time, as if other programs used its core, too.

    It begins when the rank has reported in, because importing torch would take minutes.
    """
    ended = threading.Event()

    entered = running.ranks[rank]  # the process of nsenter, which waits for the rank

    def stop_and_go() -> None:
        pid = None
        running.reach("clocks")
        while not ended.is_set() and pid is None:
            pid = next((host.ranks()[rank] for host in running.lab.hosts
                        if rank in host.ranks()), None)  # fmt: skip
        entered.send_signal(
            signal.SIGSTOP
        )  # otherwise it stops with the rank, and continues on its own
        with contextlib.suppress(ProcessLookupError):
            while pid is not None and not has_ended(pid) and not ended.wait(period * share):
                os.kill(pid, signal.SIGSTOP)
                ended.wait(period * (1 - share))
                os.kill(pid, signal.SIGCONT)
        while entered.poll() is None and not ended.wait(period):  # it may stop once more
            entered.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def little_shm(host: Host, mib: int = 64, left: int = 4) -> None:
    """Give a host the small /dev/shm of a container, with only `left` MiB free."""
    host.run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", "/dev/shm")
    host.run("fallocate", "-l", f"{mib - left}M", "/dev/shm/nccl-left-by-a-dead-job")


def wrong_clock(seconds: float) -> dict[str, str]:
    """Environment in which Python has the wrong time of day (but the right durations)."""
    here = Path(__file__).with_name("wrong_clock")
    return {"PYTHONPATH": f"{here}:{SCRIPT.parents[1]}", "CLOCK_IS_OFF_BY": str(seconds)}


def main(argv: Sequence[str]) -> None:
    box_that_loses(argv[0], argv[1], float(argv[2]), int(argv[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
