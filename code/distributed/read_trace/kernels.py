"""Which kernels take a GPU's time, in families that one would change by different means."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from distributed.read_trace.families import (
    ATTENTION,
    COMPILED,
    EMBEDDINGS,
    FUSIBLE,
    family,
    short,
)
from distributed.read_trace.rank_trace import Kernel

FP32 = re.compile(r"(?<![a-z])s(?:gemm|cudnn)|ffma|(?<!t)f32f32_f32f32|simt", re.IGNORECASE)
COMPILED_LEAST = 0.4  # of the eager kernels that could be fused: a compiled model has more
SEEN = 0.01  # of the computation: a family that takes less says nothing of the model


class Share(NamedTuple):
    """What kernels of one name, or family, took together (µs)."""

    name: str
    time: float
    number: int


def clipped(name: str, most: int = 70) -> str:
    """A name for one line: what's longer ends with an ellipsis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def by_name(kernels: Iterable[Kernel], most: int = 8) -> list[Share]:
    """The names that take most, longest first."""
    return shares(kernels, short)[:most]


def by_family(kernels: Iterable[Kernel]) -> list[Share]:
    return shares((k for k in kernels if k.kind == "compute"), family)


def shares(kernels: Iterable[Kernel], key: Callable[[str], str]) -> list[Share]:
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    named: dict[str, str] = {}
    for kernel in kernels:
        if kernel.name not in named:
            named[kernel.name] = key(kernel.name)
        name = named[kernel.name]
        times[name] += kernel.end - kernel.start
        counts[name] += 1
    found = [Share(name, time, counts[name]) for name, time in times.items()]
    return sorted(found, key=lambda share: -share.time)


def model_kind(kernels: Iterable[Kernel]) -> str:
    """What the kernels say of the model: compiled, recommender, transformer, or nothing."""
    families = {share.name: share.time for share in by_family(kernels)}
    together = sum(families.values())
    eager = sum(families.get(name, 0.0) for name in FUSIBLE)
    least = {COMPILED: max(SEEN * together, COMPILED_LEAST * eager)}
    kinds = {COMPILED: "compiled", EMBEDDINGS: "recommender", ATTENTION: "transformer"}
    for name, kind in kinds.items():
        if families.get(name, 0.0) > least.get(name, SEEN * together):
            return kind
    return ""


def in_fp32(kernels: Iterable[Kernel]) -> float:
    """µs in matrix products without tensor cores."""
    return sum(k.end - k.start for k in kernels if k.kind == "compute" and FP32.search(k.name))
