"""`python -m bench.check_cluster [--record]`: what check_cluster.py says of hosts, well and ill.

Hosts are those of `playground.lab.hosts`: namespaces of this machine, with links that the kernel
limits. With `--record` the reports go to `bench/recorded/check_cluster.json`, from where pages take
them. A report contains every measurement, so the verdicts can be computed from it again.
"""

import argparse
import json
from typing import Any

from bench.pairs import ROOT
from playground.environment import environment
from playground.lab import illnesses
from playground.lab.hosts import laboratory

LINK = "100Mbit"
PATIENCE = 300  # s


def well() -> dict[str, Any]:
    """Four healthy hosts."""
    with laboratory(4, LINK) as lab, illnesses.check(lab) as check:
        check.wait(PATIENCE)
        return check.report()


def ill() -> dict[str, Any]:
    """The last of four hosts has a slow cable, the third a /dev/shm that a dead job has filled."""
    with laboratory(4, LINK) as lab:
        lab.hosts[3].limit("15Mbit")
        illnesses.little_shm(lab.hosts[2], 64, 4)
        with illnesses.check(lab) as check:
            check.wait(PATIENCE)
            return check.report()


def dies() -> dict[str, Any]:
    """The second of four hosts loses power in the middle of an all-reduce."""
    with laboratory(4, LINK) as lab, illnesses.check(lab) as check:
        check.reach("all-reduce, 16 MiB", PATIENCE)
        lab.hosts[1].lose_power()
        check.wait(PATIENCE)
        return check.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    record = "keep the reports in bench/recorded (default: in _build)"
    parser.add_argument("--record", action="store_true", help=record)
    recorded = ROOT / "bench/recorded" if parser.parse_args().record else ROOT / "_build"
    found: dict[str, Any] = {"env": environment()}
    for case in (well, ill, dies):
        found[case.__name__] = case()
        print(f"{case.__name__}: {found[case.__name__]['seconds']:.0f} s", flush=True)
    recorded.mkdir(exist_ok=True)
    (recorded / "check_cluster.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
