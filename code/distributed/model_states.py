"""Model states per rank, in bytes, for DDP and the three ZeRO stages.

    bytes = p·Ψ + g·Ψ + (m + s)·Ψ;  stage 1 divides (m + s) by N, stage 2 also g, stage 3 also p

Ψ is the number of parameters and N the number of ranks. p, g, m, and s are the bytes per parameter
of the parameter itself, its gradient, its master copy, and the optimizer's states (Rajbhandari et
al. 2020, §3 and §5, where K = m + s). In PyTorch, fp32 parameters under autocast are "fp32, Adam".
"""

from typing import NamedTuple

from distributed.runtime.script import run_script

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


class Recipe(NamedTuple):
    """Bytes per parameter, by what they are for."""

    parameters: float
    gradients: float
    master: float
    states: float

    @property
    def total(self) -> float:
        return sum(self)


RECIPES = {
    "fp32, SGD": Recipe(4, 4, 0, 0),
    "fp32, SGD with momentum": Recipe(4, 4, 0, 4),
    "fp32, Adam": Recipe(4, 4, 0, 8),
    "bf16, Adam in fp32, no master copy": Recipe(2, 2, 0, 8),  # K = 8
    "bf16, Adam in fp32, fp32 master copy": Recipe(2, 2, 4, 8),  # K = 12: the ZeRO paper's
    "bf16, fp32 master copy and gradients": Recipe(2, 4, 4, 8),
    "bf16, 8-bit Adam, fp32 master copy": Recipe(2, 2, 4, 2),  # Dettmers et al. 2022
}


def per_rank(parameters: float, ranks: int, stage: int, recipe: Recipe) -> dict[str, float]:
    """Bytes that stay on each rank from step to step, by what they are for.

    Activations, communication buffers, and padding come on top. Raises ValueError for an invalid
    stage or number.
    """
    if stage not in range(len(STAGES)):
        raise ValueError(f"stage={stage!r}: choose 0 ({STAGES[0]}), 1, 2 or 3")
    if ranks < 1 or parameters < 0:
        raise ValueError(f"ranks={ranks}, parameters={parameters}: give 1 or more, 0 or more")
    p, g, m, s = (parameters * size for size in recipe)
    return {
        "parameters": p / ranks if stage >= 3 else p,
        "gradients": g / ranks if stage >= 2 else g,
        "master copy": m / ranks if stage >= 1 else m,
        "optimizer states": s / ranks if stage >= 1 else s,
    }


def total(parameters: float, ranks: int, stage: int, recipe: Recipe) -> float:
    """Bytes on each rank: the sum of what `per_rank` lists."""
    return sum(per_rank(parameters, ranks, stage, recipe).values())


def main(billions: float = 70.0, ranks: int = 8) -> None:
    """Print GB per rank for each recipe and stage (default: 70 billion parameters, 8 ranks)."""
    print(f"{billions:g} billion parameters, {ranks} ranks: GB (10⁹ bytes) on each")
    print(f"{'':38}" + "".join(f"{stage:>9}" for stage in STAGES))
    for name, recipe in RECIPES.items():
        sizes = [total(billions * 1e9, ranks, stage, recipe) / 1e9 for stage in range(4)]
        print(f"{name:38}" + "".join(f"{size:9.1f}" for size in sizes))
        assert sizes == sorted(sizes, reverse=True), "no stage needs more than the one before"
        assert abs(sizes[3] * ranks / sizes[0] - 1) < 1e-12, "stage 3 divides everything"


if __name__ == "__main__":
    run_script(main)
