"""Which kernels take a GPU's time, in families that one would change by different means."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from distributed.read_trace.rank_trace import Kernel

FAMILIES = {
    "attention": re.compile(r"flash|fmha|attention|attn", re.IGNORECASE),
    "matrix products": re.compile(
        r"gemm|gemv|cutlass|wgmma|xmma|nvjet|cijk|conv|wgrad|dgrad|cudnn|winograd", re.IGNORECASE
    ),
    "optimizer": re.compile(r"multi_tensor_apply|adam|foreach", re.IGNORECASE),
    "softmax and norms": re.compile(r"softmax|norm", re.IGNORECASE),
}
OTHER = "element by element"
MANGLED = re.compile(r"_ZN?K?(?=\d)")
DIGITS = re.compile(r"[1-9]\d*")
FP32 = re.compile(r"sgemm|ffma|f32f32_f32f32|simt", re.IGNORECASE)


class Share(NamedTuple):
    """What kernels of one name, or family, took together (µs)."""

    name: str
    time: float
    number: int


def family(name: str) -> str:
    return next((said for said, pattern in FAMILIES.items() if pattern.search(name)), OTHER)


def short(name: str) -> str:
    """A kernel's name without its types: `void at::f<4, …>(int, …)` → `at::f`.

    Also of a mangled name, as composable_kernel's come on ROCm: `_ZN2ck4gemmI…` → `ck::gemm`.
    """
    if " -> " in name:
        return name  # Memcpy DtoD (Device -> Device)
    plain, depth = [], 0
    for letter in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        depth += letter in "<(["
        if not depth:
            plain.append(letter)
        depth -= letter in ">)]" and depth > 0
    return demangled("".join(plain).strip() or name)


def demangled(name: str) -> str:
    """The identifiers at the beginning of a mangled name; any other name as it is.

    https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-structure
    """
    begin = MANGLED.match(name)
    if not begin:
        return name
    found, at = [], begin.end()
    while digits := DIGITS.match(name, at):
        at = digits.end() + int(digits[0])
        found.append(name[digits.end() : at])
    return "::".join(part for part in found if not part.startswith("_GLOBAL__N")) or name


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


def in_fp32(kernels: Iterable[Kernel]) -> float:
    """µs in matrix products without tensor cores."""
    return sum(k.end - k.start for k in kernels if k.kind == "compute" and FP32.search(k.name))
