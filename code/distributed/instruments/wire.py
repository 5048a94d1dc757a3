"""Bytes that really cross a host's network card (NIC), next to the formulas.

    payload of a host = Σ over its ranks of the bytes that they send to ranks of other hosts
    wire = payload + headers of packets + acknowledgements

To time work, ranks also meet at barriers and compare their clocks. The bytes that this sends are
counted once without any work, and subtracted.

The kernel counts bytes per NIC, in /proc/net/dev (Linux). On one machine all messages cross the
interface `lo`, so every rank counts as a separate host. Under torchrun on several hosts, give the
NIC that connects them, such as `eth0`: then messages inside a host aren't counted.
"""

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group, launch
from distributed.all_reduce import ring_sent
from distributed.compressors import Cast, hook
from distributed.ddp import DistributedDataParallel
from distributed.hierarchical import HierarchicalGroup, hierarchical_sent
from distributed.instruments.count_traffic import shard_sizes
from distributed.planner.traffic import between_hosts, elements_sent
from distributed.ring_group import RingGroup
from distributed.runtime.mesh import mesh
from distributed.runtime.script import run_script
from distributed.sign_and_low_rank import PowerSGD
from distributed.simple_ddp import average_gradients
from distributed.workbench.emulated import emulated_network, train_step
from distributed.workbench.measure import seconds
from distributed.workbench.training import make_network
from distributed.zero import BY_STAGE, HSDP

LAYERS, SIDE = 8, 256  # of the emulated network: 2 MB of gradients


class Seen(NamedTuple):
    """One run of a workload: bytes that this host sent, bytes by the formula, and seconds."""

    name: str
    wire: float
    payload: float | None  # None: the book has no formula for it
    seconds: float


class Workload(NamedTuple):
    """Work to repeat, and the bytes that this rank sends to other hosts each time."""

    do: Callable[[], Any]
    payload: float | None


class Site(NamedTuple):
    """Setting of a rank: its group, the NIC to watch, and the computation time of a step (s)."""

    group: Group
    nic: str
    compute: float

    @property
    def alone(self) -> bool:
        """Whether every message counts as leaving the host: on `lo`, or with one rank per host."""
        return self.nic == "lo" or self.group.local_size == 1

    def ring(self, elements: float) -> float:
        """Bytes to other hosts, if this rank sends `elements` to the next rank in a ring."""
        after = (self.group.rank + 1) % self.group.size
        leaves = self.group.rank // self.group.local_size != after // self.group.local_size
        return 4 * elements if self.alone or leaves else 0


def sent_by(nic: str) -> int:
    """Bytes that this host's NIC has sent so far.

    Raises ValueError if there is no such NIC, or if the kernel doesn't count (not Linux).
    """
    table = Path("/proc/net/dev")
    lines = table.read_text().splitlines()[2:] if table.exists() else []
    nics = {name.strip(): row.split() for name, row in (line.split(":") for line in lines)}
    if nic not in nics:
        raise ValueError(f"nic={nic!r}: choose from {', '.join(nics) or 'none: no Linux here'}")
    return int(nics[nic][8])


# --- bytes: collectives, and the stages


def ring(site: Site, n: int) -> Workload:
    rings, x = RingGroup(site.group), torch.zeros(n)
    sent = ring_sent(n, site.group.rank, site.group.size).elements
    return Workload(lambda: rings.all_reduce(x), site.ring(sent))


def hierarchical(site: Site, n: int) -> Workload:
    group, x = HierarchicalGroup(site.group), torch.zeros(n)
    where = site.group.rank, site.group.size, site.group.local_size
    return Workload(lambda: group.all_reduce(x), 4 * hierarchical_sent(n, *where).elements)


def gloo(site: Site, n: int) -> Workload:
    x = torch.zeros(n)
    return Workload(lambda: Group.all_reduce(site.group, x), None)


def one_step(model: nn.Module, update: Callable[[], None]) -> Callable[[], None]:
    def step() -> None:
        model(torch.zeros(4, 64)).square().mean().backward()
        update()

    return step


def width_for(n: int) -> int:
    """The width at which `make_network` with six layers has about n parameters."""
    return max(16, round((n / 7) ** 0.5))


def ddp(site: Site, n: int) -> Workload:
    model = DistributedDataParallel(
        make_network(width=width_for(n), depth=6), RingGroup(site.group)
    )
    do = one_step(model, lambda: None)
    do()  # after the first step, buckets are rebuilt
    where = site.group.rank, site.group.size
    sent = sum(ring_sent(len(bucket.buffer), *where).elements for bucket in model.buckets)
    return Workload(do, site.ring(sent))


def zero(site: Site, n: int, stage: int) -> Workload:
    model = make_network(width=width_for(n), depth=6)
    zero = BY_STAGE[stage](model, torch.optim.Adam, RingGroup(site.group))
    sent = sum(elements_sent(stage, site.group.size, *shard_sizes(zero)).values())
    return Workload(one_step(model, zero.step), site.ring(sent))


def hsdp(site: Site, n: int) -> Workload:
    inside, between = (RingGroup(part) for part in mesh(site.group, site.group.local_size))
    model = make_network(width=width_for(n), depth=6)
    zero = HSDP(model, torch.optim.Adam, inside, between)
    blocks, root = shard_sizes(zero)
    own = sum(elements_sent(3, inside.size, blocks, root).values()) if site.nic == "lo" else 0
    across = between_hosts([*blocks, root], between.rank, between.size)
    return Workload(one_step(model, zero.step), 4 * (own + across))


# --- time: what helps on a slow link, with emulated computation


def train(site: Site, group: Group, bucket: int, compressor: Any = None) -> Workload:
    network = emulated_network(LAYERS, SIDE, site.compute)
    model = DistributedDataParallel(network, group, bucket, bucket)
    if compressor:
        model.register_comm_hook(hook(compressor))
    train_step(model)
    return Workload(lambda: train_step(model), None)


def by_hand(site: Site, _: int) -> Workload:
    network, group = emulated_network(LAYERS, SIDE, site.compute), RingGroup(site.group)

    def do() -> None:
        train_step(network)
        average_gradients(network, group)

    return Workload(do, None)


SMALL, WHOLE = 4 * SIDE**2, 10**9  # bytes of a bucket: one layer, or all of them
CASES: dict[str, Callable[[Site, int], Workload]] = {
    "ring": ring,
    "hierarchical": hierarchical,
    "gloo": gloo,
    "DDP": ddp,
    **{f"ZeRO-{stage}": partial(zero, stage=stage) for stage in BY_STAGE},
    "HSDP": hsdp,
    "train: by hand": by_hand,
    "train: one bucket": lambda site, _: train(site, RingGroup(site.group), WHOLE),
    "train: overlapped": lambda site, _: train(site, RingGroup(site.group), SMALL),
    "train: hierarchical": lambda site, _: train(site, HierarchicalGroup(site.group), SMALL),
    "train: bf16": lambda site, _: train(site, RingGroup(site.group), SMALL, Cast()),
    "train: PowerSGD": lambda site, _: train(site, RingGroup(site.group), WHOLE, PowerSGD(4)),
}


EMPTY = 5  # repetitions to count the bytes of the timing itself


def timed(group: Group, nic: str, work: Callable[[], Any], times: int) -> tuple[float, int]:
    """Seconds of `work`, and the NIC's bytes for all `times` runs and the timing itself."""

    group.barrier()
    before = sent_by(nic)
    taken = statistics.median(seconds(group, work, times, warm_up=0))
    sent = sent_by(nic) - before
    group.barrier()
    return taken, sent


def watch(
    group: Group, names: list[str], nic: str, n: int, times: int, compute: float
) -> list[Seen]:
    """One rank: for each case, the bytes that its host's NIC sent for one run."""
    sent_by(nic)  # the NIC must be there before anything starts
    site, found = Site(group, nic, compute), []
    for name in names:
        work = CASES[name](site, n)
        work.do()
        # Other traffic on this NIC can only add bytes, so the minimum is the best estimate.
        timing = min(timed(group, nic, lambda: None, times)[1] for _ in range(EMPTY))
        taken, sent = timed(group, nic, work.do, times)
        wire = (sent - timing) / times
        payload = None
        if work.payload is not None:
            each = torch.zeros(group.size, dtype=torch.float64)
            each[group.rank] = work.payload
            Group.all_reduce(group, each)
            first = group.rank // group.local_size * group.local_size
            mine = each if nic == "lo" else each[first : first + group.local_size]
            payload = mine.sum().item()
        found.append(Seen(name, wire, payload, taken))
    return found


def main(
    ranks: int = 4,
    cases: str = "ring,gloo,DDP,ZeRO-1,ZeRO-2,ZeRO-3",
    nic: str = "lo",
    n: int = 500_000,
    times: int = 3,
    compute: float = 0.1,
    json_to: str = "",
) -> None:
    """Count what leaves this host, beside the payload of the formulas."""
    names = cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise ValueError(f"cases={','.join(unknown)}: choose from {', '.join(CASES)}")
    if n < 1 or times < 1:
        raise ValueError(f"n={n}, times={times}: 1 or more of each")
    sent_by(nic)
    results = launch(watch, names, nic, n, times, compute, ranks=ranks, device="cpu", timeout=300)
    print(f"{'':22}{'payload':>14}{'on the wire':>14}{'more by':>9}{'seconds':>9}")
    for name, wire, payload, taken in results[0]:
        formula = f"{payload:14,.0f}" if payload else f"{'':14}"
        more = f"{wire / payload - 1:9.1%}" if payload else f"{'':9}"
        print(f"{name:22}{formula}{wire:14,.0f}{more}{taken:9.3f}")
        assert not payload or wire >= payload
    if json_to:
        Path(json_to).write_text(
            json.dumps([[seen._asdict() for seen in rank] for rank in results])
        )


if __name__ == "__main__":
    run_script(main)
