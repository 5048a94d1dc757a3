"""Links inside a host: the rate of a GPU's data sheet, or one that the user has measured.

A data sheet states what a link carries, and collectives of many megabytes reach about 80% of it
(`job.WIRE`). A measured rate is planned as it is. All rates are those of one GPU in one direction.
"""

from typing import NamedTuple

from distributed.cost import Link
from distributed.planner.hardware import GPUS, PCIE_LATENCY, Gpu
from distributed.planner.job import WIRE
from distributed.planner.limits import rate, within
from distributed.runtime.script import run_script

KINDS = ("nvlink", "pcie", "ethernet")
ETHERNET = 12.5e9  # bytes/s of a port of 100 Gbit/s
LATENCY = {"pcie": PCIE_LATENCY, "ethernet": 30e-6}  # s per message; assumed


class Inside(NamedTuple):
    """A GPU's link to its neighbors: its rate (bytes/s) and the share of it that is planned with.

    `name` says where the rate is from.
    """

    rate: float
    share: float
    latency: float
    name: str
    is_measured: bool = False

    @property
    def link(self) -> Link:
        return Link(self.latency, self.share * self.rate)

    def in_words(self) -> str:
        share = "as it is" if self.share == 1 else f"with {100 * self.share:g}% of that"
        rate = f"{self.rate / 1e9:,.4g} GB/s per GPU inside a host"
        return f"{rate} ({self.name}, one way), planned {share}"


def kind_of(one: Gpu) -> str:
    """What the usual links of a GPU are called."""
    if one not in GPUS.values():
        return "--gpu-file"
    if one.is_on_pcie:
        return "PCIe, data sheet"
    return "Infinity Fabric, data sheet" if "Instinct" in one.name else "NVLink, data sheet"


def usual(one: Gpu) -> Inside:
    """The links that a GPU has in its usual host."""
    return Inside(one.inside, WIRE, one.latency, kind_of(one))


def inside_of(said: str | None, one: Gpu) -> Inside:
    """What --interconnect asks for. Raises ValueError, naming the argument."""
    if said is None or (said == "pcie" and one.is_on_pcie):
        return usual(one)
    if said == "nvlink":
        if one.is_on_pcie:
            way = "is planned on PCIe; if yours have bridges, give their rate, such as 50GB"
            raise ValueError(f"interconnect={said!r}: the {one.name} {way}")
        return usual(one)
    if said in KINDS:
        rates = {"pcie": (one.pcie, "PCIe, data sheet"), "ethernet": (ETHERNET, "100 Gbit/s")}
        return Inside(rates[said][0], WIRE, LATENCY[said], rates[said][1])
    if not said[:1].isdigit():
        way = f"choose {', '.join(KINDS)}, or give a measured rate, such as 20GB"
        raise ValueError(f"interconnect={said!r}: {way}")
    measured = rate("interconnect", said)
    within("interconnect", measured)
    return Inside(measured, 1.0, one.latency, "--interconnect", is_measured=True)


def main() -> None:
    """Print the links of all GPUs, and of an RTX 4090 whose link was measured."""
    for name, one in GPUS.items():
        print(f"{name:10} {usual(one).in_words()}")
    print(f"{'measured':10} {inside_of('12GB', GPUS['4090']).in_words()}")
    assert inside_of("12GB", GPUS["4090"]).link.bandwidth == 12e9


if __name__ == "__main__":
    run_script(main)
