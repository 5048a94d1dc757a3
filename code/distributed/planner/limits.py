"""Validation of the planner's arguments: the range of each, and a clear error outside it."""

import re

from distributed.cost import Cluster
from distributed.planner.job import Job
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS

# Minimum and maximum of each argument. The maximum is well above the largest in existence.
LIMITS = {
    "params": (1, 1e16),
    "gpus": (1, 1e8),
    "per_host": (1, 1e6),
    "gpu_memory": (1, 1e16),  # bytes
    "network": (1, 1e16),  # bytes/s of a host
    "inside": (1, 1e16),  # bytes/s
    "interconnect": (1, 1e16),  # bytes/s of a GPU inside a host
    "sequences": (1e-6, 1e9),  # less than 1 if several ranks share a sequence
    "context": (1, 1e9),
    "accumulate": (1, 1e6),
    "batch": (1, 1e12),  # tokens in a step
    "speed": (1, 1e20),  # FLOP/s
    "tokens": (1, 1e18),
    "reserve": (0, 0.9),  # share of a GPU's memory
    "lora": (1, 1e5),  # rank
    "trainable": (1e-9, 1),  # share of the parameters
}


def within(name: str, value: float) -> None:
    """Raise ValueError, naming the argument, if it is too small, too large or not a number."""
    least, most = LIMITS[name]
    if not least <= value <= most:
        raise ValueError(f"{name}={value:g}: give {least:g} to {most:g}")


def check(job: Job, cluster: Cluster, memory: float, stack: str = "pytorch") -> None:
    """Raise ValueError, naming the argument, if one is invalid or two contradict each other."""
    given = {
        "params": job.model.parameters,
        "gpus": cluster.ranks,
        "per_host": cluster.per_host,
        "gpu_memory": memory,
        "network": cluster.network.bandwidth,
        "inside": cluster.inside.bandwidth,
        "sequences": job.rows,
        "context": job.context,
        "accumulate": job.accumulate,
        "speed": cluster.speed,
    }
    for name, value in given.items():
        within(name, value)
    if cluster.ranks > cluster.per_host and cluster.ranks % cluster.per_host:
        hosts = f"hosts of per_host={cluster.per_host} would not all be full"
        raise ValueError(f"gpus={cluster.ranks}: {hosts}; give a multiple of it")
    if job.checkpoint not in ("auto", *CHECKPOINTS):
        raise ValueError(f"checkpoint={job.checkpoint!r}: choose auto, {', '.join(CHECKPOINTS)}")
    if stack not in STACKS:
        raise ValueError(f"stack={stack!r}: choose {', '.join(STACKS)}")


SLOWEST = 1e8  # FLOP/s


def whole_or_split(sequences: float, gpus: int) -> float:
    """Sequences of a micro-batch, or 1/n of one that n GPUs share. Raises ValueError for others."""
    if sequences >= 1 and sequences == int(sequences):
        return sequences
    over = round(1 / sequences) if 0 < sequences < 1 else 0
    if over > 1 and not gpus % over and abs(sequences * over - 1) < 1e-3:
        return 1 / over
    way = f"one that is split over GPUs, as 1/n, where n divides the {gpus:,} GPUs"
    raise ValueError(f"sequences={sequences:g}: give a whole number, or {way}")


def check_speed(speed: float, peak: float, device: str) -> None:
    """Raise ValueError if no GPU is as slow, or if this one isn't as fast."""
    if not speed >= SLOWEST:
        way = f"a GPU has at least {SLOWEST:g} FLOP/s; write it like 400T"
        raise ValueError(f"speed={speed:g}: {way}")
    if speed > peak:
        raise ValueError(f"speed={speed:g}: more than the {peak:g} FLOP/s of {device}")


def share(name: str, said: str) -> float:
    """A share from "10%" or "0.1". Raises ValueError, naming the argument."""
    try:
        return float(said.removesuffix("%")) / (100 if said.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{name}={said!r}: write it like 10% or 0.1") from None


SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}


def number(said: str) -> float:
    """A number from "8e9", "8b" or "8B": K is thousand, M million, B or G billion, T trillion.

    Raises ValueError for anything else.
    """
    try:
        return float(said)
    except ValueError:
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmbgtp]?)", said.strip().lower())
    if not found:
        raise ValueError(f"{said!r} is not a number: write it like 8e9, 8B, 4M or 15T")
    return float(found[1]) * SCALES[found[2]]


UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
UNITS |= {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
AMOUNT = r"(\d+(?:\.\d+)?) ?([KMGTkmgt]i?)"


def size(name: str, said: str) -> float:
    """Bytes: "80GB" is 80 · 10⁹, "80GiB" 80 · 2³⁰. Raises ValueError, naming the argument."""
    found = re.fullmatch(rf"{AMOUNT}[Bb]", said)
    if not found:
        raise ValueError(f"{name}={said!r}: write it with its unit, like 80GB or 80GiB")
    return float(found[1]) * UNITS[found[2].lower()]


def rate(name: str, said: str) -> float:
    """Bytes/s, from bytes or bits: "50GB", "400Gbit". Raises ValueError, naming the argument.

    "50gb" and "50Gb" are refused because some people mean bits by them and others bytes.
    """
    found = re.fullmatch(rf"{AMOUNT}(B|bit|bps)(?:/s)?", said)
    if not found:
        raise ValueError(f"{name}={said!r}: write it with its unit, like 400GB or 400Gbit")
    return float(found[1]) * UNITS[found[2].lower()] / (1 if found[3] == "B" else 8)
