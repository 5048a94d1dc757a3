"""`python -m bench.lab [--record]`: what several hosts really send, and how long it takes.

Hosts are those of `playground.lab`: namespaces of this machine, with links limited by the kernel.
With `--record` the result goes to `bench/recorded/lab.json`, from where the page takes it.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.pairs import ROOT, environment
from playground.accidents import Training
from playground.lab import Laboratory, laboratory

WIRE = str(ROOT / "code/distributed/wire.py")
BYTES = ("ring", "hierarchical", "gloo", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP")
BANDWIDTHS = ("1000Mbit", "500Mbit", "200Mbit", "100Mbit", "50Mbit")
COLLECTIVES = ("ring", "hierarchical", "gloo")
WAYS = ("by hand", "one bucket", "overlapped", "hierarchical", "bf16", "PowerSGD")


def watch(lab: Laboratory, names: list[str], per_host: int, **options: Any) -> list[dict[str, Any]]:
    """What the first host's card saw of each case."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "seen.json")
        given = {"cases": ",".join(names), "card": "eth0", "json_to": to, **options}
        words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
        ranks = per_host * len(lab.hosts)
        lab.torchrun([WIRE, "--ranks", str(ranks), *words], per_host, timeout=400)
        return json.loads(to.read_text())[0]


def measure(quick: bool = False) -> dict[str, Any]:
    """All of it: bytes by case, seconds by bandwidth, by way of training, and by hosts."""
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
    found["accidents"] = {
        name: [accident(name) for _ in range(1 if quick else 3)]
        for name in ("a rank is killed", "a host loses power", "a cable is pulled")
    }
    found["kills"] = kills(3 if quick else 50)
    return found


def accident(name: str, patience: float = 5.0) -> dict[str, float]:
    """Seconds until the others notice, and until a step is done again."""
    with tempfile.TemporaryDirectory() as folder, laboratory(2) as lab:
        training = Training(lab, f"{folder}/run", until=200, every=3, pace=0.2, patience=patience)
        training.wait_for_step(7)
        begun = time.monotonic()
        if name == "a rank is killed":
            os.kill(lab.hosts[1].ranks()[3], signal.SIGKILL)
        elif name == "a host loses power":
            lab.hosts[1].kill()
        else:
            lab.hosts[1].cut()
        noticed, _ = training.wait_for(r"RuntimeError: .*gloo")
        again, step = training.wait_for_start(4 if name == "a rank is killed" else 2)
        return {"noticed": noticed.at - begun, "again": again.at - begun, "step": step}


def kills(times: int) -> dict[str, Any]:
    """Random ranks killed at random moments: steps lost, processes left, and the curve."""
    chance, lost = random.Random(0), 0
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
    return {"kills": times, "lost": lost, "left": left, "equal": losses == once, "steps": len(once)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lab", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one bandwidth of each kind")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    text = json.dumps(measure(options.quick), indent=1) + "\n"
    print(text)
    if options.record:
        (ROOT / "bench/recorded/lab.json").write_text(text)


if __name__ == "__main__":
    main()
