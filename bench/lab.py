"""`python -m bench.lab [--record]`: what several hosts send, how long it takes, and accidents.

Hosts are those of `playground.lab.hosts`: namespaces of this machine, with links that the kernel
limits.
With `--record` the result goes to `bench/recorded/lab.json`, from where pages take it.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.pairs import ROOT
from playground.environment import environment
from playground.lab.accidents import STEP, Training
from playground.lab.hosts import Laboratory, laboratory

WIRE = str(ROOT / "code/distributed/instruments/wire.py")
BYTES = ("ring", "hierarchical", "gloo", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP")
BANDWIDTHS = ("1000Mbit", "500Mbit", "200Mbit", "100Mbit", "50Mbit")
COLLECTIVES = ("ring", "hierarchical", "gloo")
WAYS = ("by hand", "one bucket", "overlapped", "hierarchical", "bf16", "PowerSGD")


def watch(lab: Laboratory, names: list[str], per_host: int, **options: Any) -> list[dict[str, Any]]:
    """Bytes of each case that the first host's NIC counted."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "seen.json")
        given = {"cases": ",".join(names), "nic": "eth0", "json_to": to, **options}
        words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
        ranks = per_host * len(lab.hosts)
        lab.torchrun([WIRE, "--ranks", str(ranks), *words], per_host, timeout=400)
        return json.loads(to.read_text())[0]


def links(quick: bool = False) -> dict[str, Any]:
    """Bytes by case; seconds by bandwidth, by way of training, and by hosts."""
    found: dict[str, Any] = {"env": environment()}
    train = [f"train: {way}" for way in WAYS]
    with laboratory(2) as lab:
        found["bytes"] = watch(lab, list(BYTES), 2)
        found["bandwidths"] = {}
        for bandwidth in BANDWIDTHS[2:3] if quick else BANDWIDTHS:
            lab.limit(bandwidth)
            found["bandwidths"][bandwidth] = watch(lab, list(COLLECTIVES), 2, n=250_000, times=7)
        lab.limit("100Mbit")
        found["ways"] = watch(lab, train, 2, compute=0.2)
    found["hosts"] = {}
    for bandwidth in ("100Mbit",) if quick else ("1000Mbit", "100Mbit"):
        for hosts in (1, 2, 4):
            with laboratory(hosts, bandwidth) as lab:
                seen = watch(lab, ["train: overlapped"], 1, compute=0.2, times=5)
            found["hosts"][f"{hosts} at {bandwidth}"] = seen[0]
    return found


def kill_a_rank(lab: Laboratory) -> None:
    os.kill(max(lab.hosts[1].ranks().items())[1], signal.SIGKILL)


# How often TCP sends again before it gives a silent host up, and torchrun its store. Linux' own 15
# times take 15 minutes: https://docs.kernel.org/networking/ip-sysctl.html
RETRIES = 5
TRAINING = {"every": 3, "pace": 0.2, "patience": 5.0}  # steps, s, s
ACCIDENTS: dict[str, Callable[[Laboratory], None]] = {
    "a rank is killed": kill_a_rank,
    "all processes of a host are killed": lambda lab: lab.hosts[1].kill(),
    "a host loses power": lambda lab: lab.hosts[1].lose_power(),
    "a cable is pulled": lambda lab: lab.hosts[1].cut(),
    "the first host loses power": lambda lab: lab.hosts[0].lose_power(),
}


def accidents(quick: bool = False) -> dict[str, Any]:
    """What each accident costs; a link that becomes slow; and four hosts, three, four again."""
    found: dict[str, Any] = {"env": environment(), "training": TRAINING, "retries": RETRIES}
    found["runs"] = {name: [accident(name) for _ in range(1 if quick else 3)] for name in ACCIDENTS}
    return {"accidents": {**found, "slow": slow_link(), "elastic": elastic()}}


def accident(name: str) -> dict[str, Any]:
    """Seconds until the others find out, and until a step is done again; and its number of ranks.

    Without the first host, where all ranks meet, torchrun ends on the other one after `ended`
    seconds, and is started again.
    """
    with tempfile.TemporaryDirectory() as folder, laboratory(2) as lab:
        lab.hosts[1].run("sh", "-c", f"echo {RETRIES} >/proc/sys/net/ipv4/tcp_retries2")
        training = Training(lab, f"{folder}/run", until=200, **TRAINING)
        training.wait_for_start(4)
        training.wait_for_step(7)
        begun = time.monotonic()
        ACCIDENTS[name](lab)
        noticed, _ = training.wait_for(r"RuntimeError: .*gloo")
        found = {"noticed": noticed.at - begun}
        if name == "the first host loses power":
            training.processes[1].wait(400)
            found["ended"] = time.monotonic() - begun
            lab.hosts[:1] = []
            training = Training(lab, f"{folder}/run", until=200, **TRAINING)
        again, match = training.wait_for(STEP.pattern)
        while again.at < noticed.at:
            again, match = training.wait_for(STEP.pattern)
        found["again"] = again.at - begun
        return {**found, "step": int(match[1]), "ranks": int(match[2])}


def slow_link(bandwidth: str = "1Mbit", steps: int = 10) -> dict[str, Any]:
    """Seconds of a step before and after a host's link becomes slow, and the bytes that its NIC
    sent or received, whichever are more, in a step before. Nothing is saved in the meantime."""
    with tempfile.TemporaryDirectory() as folder, laboratory(2) as lab:
        training = Training(lab, f"{folder}/run", until=10_000, every=10_000, pace=0.05)
        training.wait_for_start(4)
        host, found, step = lab.hosts[1], {}, 0
        for name in ("before", "after"):
            begun = training.wait_for_step(step + 3).at
            sent, step = host.wire(), training.curve()[-1][0] + steps
            found[name] = (training.wait_for_step(step).at - begun) / steps
            found.setdefault("bytes", max(np.subtract(host.wire(), sent)) / steps)
            host.limit(bandwidth)
        return {**found, "bandwidth": bandwidth, "ranks": training.curve()[-1][1]}


def elastic() -> dict[str, Any]:
    """A host with three ranks and one with one: without the second for a while, so on four ranks,
    three, and four. Steps and ranks as they were done, the losses, and those of a run in one go."""
    settings: dict[str, Any] = {**TRAINING, "per_host": (3, 1), "until": 45}
    with tempfile.TemporaryDirectory() as folder, laboratory(2) as lab:
        training = Training(lab, f"{folder}/run", **settings)
        training.wait_for_start(4)
        training.wait_for_step(10)
        lab.hosts[1].cut()
        _, begin = training.wait_for_start(3)
        training.wait_for_step(begin + 7)
        lab.hosts[1].mend()
        training.wait_for_start(4)
        losses = training.wait_for_end()
        done = [(step, ranks) for step, ranks, _ in training.curve()]
        once = Training(lab, f"{folder}/once", **{**settings, "pace": 0.0}).wait_for_end()
    return {"done": done, "losses": losses, "once": once}


def kills(quick: bool = False) -> dict[str, Any]:
    """Random ranks killed at random moments: steps lost, processes left, and the curve."""
    chance, lost, times = random.Random(0), 0, 3 if quick else 50
    settings: dict[str, Any] = {"per_host": 1, "fewest": 2, "every": 2, "until": 4 * times}
    with tempfile.TemporaryDirectory() as folder, laboratory(2) as lab:
        training = Training(lab, f"{folder}/run", pace=0.05, **settings)
        for _ in range(times):
            training.wait_for_start(2)
            time.sleep(chance.uniform(0, 0.4))
            committed = training.committed()
            ranks = {rank: pid for host in lab.hosts for rank, pid in host.ranks().items()}
            os.kill(ranks[chance.randrange(2)], signal.SIGKILL)
            training.wait_for("2 ranks · gloo · CPU · torchrun")
            lost += training.wait_for_start(2)[1] <= committed
        losses = training.wait_for_end()
        for process in training.processes:
            process.wait(30)
        left = sum(len(host.ranks()) for host in lab.hosts)
        once = Training(lab, f"{folder}/once", **settings).wait_for_end()
    found = {"kills": times, "lost": lost, "left": left, "equal": losses == once}
    return {"kills": {"env": environment(), **found, "steps": len(once)}}


PARTS = {part.__name__: part for part in (links, accidents, kills)}
KEPT = ROOT / "bench/recorded/lab.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lab", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only one bandwidth of each kind")
    parser.add_argument("--record", action="store_true", help="keep the result in bench/recorded")
    parser.add_argument(
        "--only", choices=PARTS, help="part to measure; the others stay as recorded (default: all)"
    )
    options = parser.parse_args()
    found = json.loads(KEPT.read_text()) if options.only else {}
    for name in [options.only] if options.only else PARTS:
        found |= PARTS[name](options.quick)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.record:
        KEPT.write_text(text)


if __name__ == "__main__":
    main()
