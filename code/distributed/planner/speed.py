"""Achieved compute speed of a GPU: the share of its peak, by model width and tokens.

    achieved = peak · best · d/(d + width) · T/(T + tokens)

Narrow matrices and few tokens leave a GPU partly idle. The three constants are fitted to the
single-host runs of llm-foundry (`published.csv`), and half of those predictions are within 4%.
Recomputing a forward pass costs less than running it the first time, because the memory that
checkpointing frees allows larger kernels: see `RECOMPUTE`.

Two more constants are fitted to other published runs. Eager blocks of an H100 reach `EAGER` of the
curve, because its products are faster than an A100's by more than its memory is, and eager kernels
read and write memory between products. With every doubling of the number of hosts, a step takes
`STRAGGLERS` longer, because all ranks wait for the slowest host and the slowest path.
"""

import math
from typing import NamedTuple

from distributed.model_states import Recipe
from distributed.planner.hardware import GPUS, Gpu
from distributed.planner.shapes import Model
from distributed.runtime.script import run_script


class Curve(NamedTuple):
    """The best share of peak, and the width and the tokens per micro-batch that each halve it."""

    best: float
    width: float
    tokens: float


CURVES = {"a100": Curve(0.75, 500, 900), "h100": Curve(0.69, 1300, 1400)}  # fitted, see above
RECOMPUTE = {"none": 0.0, "selective": 0.11, "full": 0.23}  # added time; selective: half of full
# GPUs whose runs the curves were fitted to, and variants of them with a different memory size
MEASURED = ("a100", "a100-40", "h100", "h200")
FITTED_TO = ("a100", "a100-40", "h100")  # the first of these, without a variant
# Speed of eager blocks in units of the curve, which compiled ones reach
EAGER = {"a100": 1.0, "h100": 0.84}
STRAGGLERS = 0.013  # share of a step's computation, per doubling of the number of hosts
FAST = 500e12  # peak FLOP/s: a GPU from here on is treated like an H100, a slower one like an A100


def curve_name(gpu: Gpu) -> str:
    """The GPU whose curve is used; for a GPU that isn't in `MEASURED`, it is extrapolated."""
    return "h100" if gpu.peak >= FAST else "a100"


def has_curve(gpu: Gpu) -> bool:
    """Whether a curve was fitted to runs on this GPU, or on one that differs only in memory."""
    return gpu in {GPUS[name] for name in MEASURED}


def is_fitted(gpu: Gpu) -> bool:
    """Whether a curve was fitted to runs on this very GPU."""
    return gpu in {GPUS[name] for name in FITTED_TO}


def curve_of(gpu: Gpu) -> Curve:
    """The curve of the GPU's generation."""
    return CURVES[curve_name(gpu)]


def utilisation(gpu: Gpu, model: Model, tokens: float) -> float:
    """The share of peak that a micro-batch of this many tokens reaches."""
    best, width, few = curve_of(gpu)
    return best * model.d / (model.d + width) * tokens / (tokens + few)


def products_in(gpu: Gpu, recipe: Recipe, tf32: bool = False) -> str:
    """The number format in which a GPU multiplies: bf16, fp16, fp32 or TF32."""
    if recipe.parameters == 4:
        return "TF32" if tf32 else "fp32"
    return gpu.dtype


def peak_of(gpu: Gpu, recipe: Recipe, tf32: bool = False) -> float:
    """The data sheet's FLOP/s in the format of `products_in`; 0 if the table doesn't have it."""
    return {"TF32": gpu.tf32, "fp32": gpu.fp32}.get(products_in(gpu, recipe, tf32), gpu.peak)


def achieved(
    gpu: Gpu,
    model: Model,
    tokens: float,
    compiled: bool | None = None,
    peak: float | None = None,
) -> float:
    """FLOP/s of one GPU, not counting recomputation.

    `compiled` is whether blocks are. If it is None, the speed is the curve's, like that of runs
    that don't say whether they are. `peak` is that of the number format (default: 16 bits). In
    others, products are slower, and eager kernels between them cost no share of the speed.
    """
    peak = gpu.peak if peak is None else peak
    is_eager = compiled is False and peak == gpu.peak
    share = EAGER[curve_name(gpu)] if is_eager else 1.0
    return share * peak * utilisation(gpu, model, tokens)


def longer(ranks: int, per_host: int) -> float:
    """How many times as long computation takes on this many ranks as on those of one host."""
    return 1 + STRAGGLERS * math.log2(max(1, math.ceil(ranks / per_host)))


def main() -> None:
    """The share of peak that models of three widths reach, with few tokens and with many."""
    from distributed.planner.shapes import PRESETS

    for name in ("a100", "h100"):
        for model in ("mpt-1b", "mpt-7b", "llama-3-70b"):
            shares = [utilisation(GPUS[name], PRESETS[model], tokens) for tokens in (2048, 16384)]
            few, many = (f"{share:.0%}" for share in shares)
            print(f"{name} {model:12} {few} of peak at 2,048 tokens, {many} at 16,384")
            assert 0 < shares[0] < shares[1] < 1


if __name__ == "__main__":
    run_script(main)
