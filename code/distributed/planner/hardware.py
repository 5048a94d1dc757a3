"""Table of GPUs and networks: compute speed, memory and bandwidth, with their sources.

All numbers are for *one GPU*, and bandwidths are in *one direction*. A host's are derived: an H100
host with eight GPUs and a port of 400 Gbit/s per GPU sends 8 × 50 = 400 GB/s, not 50.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from distributed.runtime.script import run_script

GIB = 2**30
PCIE_LATENCY = 10e-6  # s per message; assumed


class Network(NamedTuple):
    """Bandwidth of one port in one direction (bytes/s), and latency per message (s, assumed)."""

    bandwidth: float
    latency: float
    source: str


def port(gigabits: float, latency: float, source: str) -> Network:
    """A port with this many Gbit/s."""
    return Network(gigabits / 8 * 1e9, latency, source)


# Latencies are typical of a message between two hosts through NCCL; vendors state lower ones.
NETWORKS = {
    "ethernet-1": port(1, 50e-6, "IEEE 802.3ab"),
    "ethernet-10": port(10, 40e-6, "IEEE 802.3ae"),
    "ethernet-25": port(25, 30e-6, "IEEE 802.3by"),
    "ethernet-100": port(100, 30e-6, "IEEE 802.3bm"),
    "edr": port(100, 10e-6, "InfiniBand Trade Association, roadmap: EDR, 4 lanes"),
    "hdr": port(200, 10e-6, "InfiniBand Trade Association, roadmap: HDR, 4 lanes"),
    "ndr": port(400, 10e-6, "InfiniBand Trade Association, roadmap: NDR, 4 lanes"),
    "xdr": port(800, 10e-6, "InfiniBand Trade Association, roadmap: XDR, 4 lanes"),
}


class Gpu(NamedTuple):
    """One GPU, and its usual host."""

    name: str
    peak: float  # FLOP/s, dense (without sparsity), in the 16-bit format that it trains in
    memory: float  # bytes that CUDA (or ROCm) makes available to a program
    inside: float  # bytes/s in one direction to the other GPUs of its host
    network: float  # bytes/s in one direction to other hosts: its share of the host's ports
    per_host: int
    source: str  # of peak and `inside`
    host: str  # the host that `network` describes
    dtype: str = "bf16"  # fp16 if the GPU has no bf16
    fp32: float = 0.0  # FLOP/s of products in fp32, as PyTorch multiplies by default; 0: not known
    tf32: float = 0.0  # the same, rounded to TF32 for the tensor cores; 0: not known, or none
    pcie: float = 32e9  # bytes/s in one direction of its 16 lanes
    peer_to_peer: bool = True  # whether its driver lets it copy to its neighbors over PCIe

    @property
    def is_on_pcie(self) -> bool:
        """Whether its usual links inside a host are PCIe."""
        return self.inside <= self.pcie

    @property
    def latency(self) -> float:
        """Seconds of a message inside its usual host; assumed."""
        return PCIE_LATENCY if self.is_on_pcie else 3e-6

    @property
    def host_network(self) -> float:
        """Bytes/s that a whole host sends to other hosts."""
        return self.per_host * self.network

    @property
    def slowdown(self) -> float:
        """How many times slower the network is than the links inside the host."""
        return self.inside / self.network


# Memory is the "total capacity" in PyTorch's out-of-memory message. It varies by about 0.1 GiB with
# ECC and the driver. So an "80 GB" GPU has 79.2 GiB, or 85 · 10⁹ bytes. Peaks in fp32 and TF32 are
# from the same sources as the other peaks, dense; the B200's are those of its HGX host.
GPUS = {
    "p100": Gpu("P100 SXM2", 21.2e12, 15.89 * GIB, 80e9, 6.25e9, 8,
                "NVIDIA, Tesla P100 data sheet: 21.2 TFLOP/s, NVLink 160 GB/s both ways",
                "DGX-1: four ports of 100 Gbit/s for eight GPUs", "fp16", 10.6e12, pcie=16e9),
    "v100": Gpu("V100 SXM2 16 GB", 125e12, 15.77 * GIB, 150e9, 6.25e9, 8,
                "NVIDIA, Tesla V100 data sheet: 125 TFLOP/s, NVLink 300 GB/s both ways",
                "DGX-1: four ports of 100 Gbit/s for eight GPUs", "fp16", 15.7e12, pcie=16e9),
    "v100-32": Gpu("V100 SXM3 32 GB", 125e12, 31.74 * GIB, 150e9, 6.25e9, 16,
                   "NVIDIA, Tesla V100 data sheet: 125 TFLOP/s, NVLink 300 GB/s both ways",
                   "DGX-2: eight ports of 100 Gbit/s for sixteen GPUs", "fp16", 15.7e12,
                   pcie=16e9),
    "a100-40": Gpu("A100 SXM4 40 GB", 312e12, 39.39 * GIB, 300e9, 25e9, 8,
                   "NVIDIA, A100 data sheet: 312 TFLOP/s, NVLink 600 GB/s both ways",
                   "DGX A100: eight ports of 200 Gbit/s for eight GPUs",
                   fp32=19.5e12, tf32=156e12),
    "a100": Gpu("A100 SXM4 80 GB", 312e12, 79.15 * GIB, 300e9, 25e9, 8,
                "NVIDIA, A100 data sheet: 312 TFLOP/s, NVLink 600 GB/s both ways",
                "DGX A100: eight ports of 200 Gbit/s for eight GPUs",
                fp32=19.5e12, tf32=156e12),
    "h100-pcie": Gpu("H100 PCIe 80 GB", 756e12, 79.11 * GIB, 64e9, 25e9, 8,
                     "NVIDIA, H100 data sheet: 1,513 TFLOP/s sparse, PCIe 5 128 GB/s both ways",
                     "assumed: a port of 200 Gbit/s for each GPU",
                     fp32=51e12, tf32=378e12, pcie=64e9),
    "h100": Gpu("H100 SXM5 80 GB", 989e12, 79.11 * GIB, 450e9, 50e9, 8,
                "NVIDIA, H100 data sheet: 1,979 TFLOP/s sparse, NVLink 900 GB/s both ways",
                "DGX H100: eight ports of 400 Gbit/s for eight GPUs",
                fp32=67e12, tf32=495e12, pcie=64e9),
    "h200": Gpu("H200 SXM 141 GB", 989e12, 139.8 * GIB, 450e9, 50e9, 8,
                "NVIDIA, H200 data sheet: 1,979 TFLOP/s sparse, NVLink 900 GB/s both ways",
                "DGX H200: eight ports of 400 Gbit/s for eight GPUs",
                fp32=67e12, tf32=495e12, pcie=64e9),
    "b200": Gpu("B200 SXM 180 GB", 2250e12, 178.35 * GIB, 900e9, 50e9, 8,
                "NVIDIA, Blackwell architecture brief: 2.25 PFLOP/s, NVLink 1.8 TB/s both ways",
                "DGX B200: eight ports of 400 Gbit/s for eight GPUs",
                fp32=80e12, tf32=1100e12, pcie=64e9),
    "mi300x": Gpu("Instinct MI300X 192 GB", 1307e12, 191.69 * GIB, 448e9, 50e9, 8,
                  "AMD, MI300X data sheet: 1,307 TFLOP/s, seven links of 128 GB/s both ways",
                  "assumed: eight ports of 400 Gbit/s for eight GPUs",
                  fp32=163.4e12, tf32=653.7e12, pcie=64e9),
    "l40s": Gpu("L40S 48 GB", 362e12, 44.4 * GIB, 32e9, 12.5e9, 4,
                "NVIDIA, L40S data sheet: 733 TFLOP/s sparse, PCIe 4 64 GB/s both ways",
                "assumed: two ports of 200 Gbit/s for four GPUs",
                fp32=91.6e12, tf32=183e12),
    "3090": Gpu("GeForce RTX 3090 24 GB", 71e12, 23.69 * GIB, 32e9, 1.25e9, 4,
                "NVIDIA, Ampere GA102 architecture paper: 71 TFLOP/s adding in fp32; PCIe 4, 16"
                " lanes", "assumed: four ports of 10 Gbit/s for four GPUs",
                fp32=35.6e12, tf32=35.6e12, peer_to_peer=False),
    "4090": Gpu("GeForce RTX 4090 24 GB", 165e12, 23.64 * GIB, 32e9, 1.25e9, 4,
                "NVIDIA, Ada architecture paper: 165.2 TFLOP/s adding in fp32; PCIe 4, 16 lanes",
                "assumed: four ports of 10 Gbit/s for four GPUs",
                fp32=82.6e12, tf32=82.6e12, peer_to_peer=False),
    "5090": Gpu("GeForce RTX 5090 32 GB", 209.5e12, 31.36 * GIB, 64e9, 1.25e9, 4,
                "NVIDIA, RTX Blackwell architecture paper: 209.5 TFLOP/s adding in fp32; PCIe 5, 16"
                " lanes", "assumed: four ports of 10 Gbit/s for four GPUs",
                fp32=104.8e12, tf32=104.8e12, pcie=64e9, peer_to_peer=False),
}  # fmt: skip

ALIASES = {"a100-80": "a100", "h100-sxm": "h100", "v100-16": "v100"}
BRANDS = r"^(nvidia|amd|geforce|instinct|tesla|rtx)-?"  # of names such as "NVIDIA GeForce RTX4090"

Entry = TypeVar("Entry")


def look_up(name: str, table: Mapping[str, Entry], kind: str, way: str = "") -> Entry:
    """The entry with that name. Raises ValueError with a way out and the nearest names."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    while (shorter := re.sub(BRANDS, "", key)) != key:
        key = shorter
    key = ALIASES.get(key, key)
    if key in table:
        return table[key]
    near = get_close_matches(key, [*table, *ALIASES], n=3, cutoff=0.4)
    rest = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(table)}"
    raise ValueError(f"{kind}={name!r} is not known: {way}{rest}")


def gpu(name: str) -> Gpu:
    """A GPU by its name, such as "h100". Raises ValueError with the way out and nearest names."""
    return look_up(name, GPUS, "gpu", "describe it in a file for --gpu-file; ")


def network(name: str) -> Network:
    """A port by its name, such as "ndr". Raises ValueError with the nearest names."""
    return look_up(name, NETWORKS, "network")


def between_hosts(gpu: Gpu) -> float:
    """Bytes/s that an all-reduce over hosts can use: a host's ports or, if slower, its links."""
    return min(gpu.inside, gpu.host_network)


def main() -> None:
    """Print all GPUs: TFLOP/s, GiB, and GB/s inside a host and out of it."""
    print(f"{'':11}{'TFLOP/s':>9}{'GiB':>8}{'inside':>9}{'network':>9}  GB/s, one GPU, one way")
    for key, one in GPUS.items():
        numbers = f"{one.peak / 1e12:9,.0f}{one.memory / GIB:8.1f}{one.inside / 1e9:9.0f}"
        print(f"{key:11}{numbers}{one.network / 1e9:9.2f}")
        assert one.inside > one.network, "inside of a host links are faster"
    assert gpu("H100").host_network == 8 * network("ndr").bandwidth


if __name__ == "__main__":
    run_script(main)
