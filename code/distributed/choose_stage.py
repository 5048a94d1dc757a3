"""Which stage? The first that fits: each one after it costs more, or is harder to work with.

DDP, ZeRO-1 and ZeRO-2 send the same number of bytes; ZeRO-3 sends half more, and gathers through
the whole step. So the answer follows from memory alone, until links between hosts are slow.
"""

from collections.abc import Callable
from typing import NamedTuple

from distributed.model_states import RECIPES, STAGES, Recipe, total
from distributed.runtime.script import run_script

MOST_RANKS = 1 << 20


COSTS = {  # of what would fit, too, and is passed over
    2: "ZeRO-2 sends in every backward pass or keeps all gradients",
    3: "ZeRO-3 sends half more",
}


class Choice(NamedTuple):
    """A stage (None: nothing fits), the bytes that it needs on each rank, and the reason."""

    stage: int | None
    needs: list[float]  # by stage
    why: str


def choose(
    parameters: float,
    ranks: int,
    memory: float,
    recipe: Recipe,
    activations: float = 0.0,
    largest_block: float = 0.0,
    per_host: int | None = None,
) -> Choice:
    """The first stage whose bytes on each rank are at most `memory`.

    `activations` are bytes on each rank, `largest_block` is the number of parameters that are
    gathered together: ZeRO-3 holds two such blocks, and the gradient of one. Where a host has
    `per_host` of the ranks, and its own ranks' memory is enough, the answer is HSDP.
    Raises ValueError for numbers that make no sense.
    """
    if memory <= 0 or activations < 0 or largest_block < 0:
        raise ValueError("memory: above 0; activations and largest_block: 0 or more")
    if per_host is not None and not 1 <= per_host <= ranks:
        raise ValueError(f"per_host={per_host}: choose 1 to {ranks}, the ranks there are")

    def needs(stage: int, over: int) -> float:
        buffers = 2 * recipe.parameters + recipe.gradients if stage == 3 else 0
        return total(parameters, over, stage, recipe) + activations + buffers * largest_block

    by_stage = [needs(stage, ranks) for stage in range(len(STAGES))]
    first = next((stage for stage, need in enumerate(by_stage) if need <= memory), None)
    if first is None:
        return Choice(None, by_stage, _what_would_fit(by_stage, memory, needs, ranks))
    if first == 0:
        why = "everything fits on every rank: nothing is simpler"
    elif first < 3:
        why = f"{STAGES[first - 1]} does not fit, and {STAGES[first]} sends no byte more than DDP"
        why += "; passed over: " + "; ".join(COSTS[stage] for stage in range(first + 1, 4))
    elif per_host and per_host < ranks and needs(3, per_host) <= memory:
        why = f"sharded over a host's {per_host} ranks it fits: HSDP, with gathers inside of hosts"
    else:
        why = "only with parameters sharded does it fit: half more bytes than DDP, gather early"
    return Choice(first, by_stage, why)


def _what_would_fit(
    by_stage: list[float], memory: float, needs: Callable[[int, int], float], ranks: int
) -> str:
    """Which way out is left, in words."""
    over = ranks
    while over < MOST_RANKS and needs(3, over) > memory:
        over *= 2
    if needs(3, over) > memory:
        return (
            "activations and gathered blocks alone are more than memory: checkpoint activations, "
            "take fewer rows, make blocks smaller"
        )
    return (
        f"ZeRO-3 needs {by_stage[3] / memory:.1f} × the memory: {over} ranks would do; or 8-bit "
        "states, or tensors on the host"
    )


def main(
    billions: float = 7.0, ranks: int = 8, gigabytes: float = 80.0, activations: float = 10.0
) -> None:
    """Choose for a model of 7 billion parameters on 8 ranks with 80 GB, 10 GB of activations."""
    recipe = RECIPES["bf16, Adam in fp32, fp32 master copy"]
    chosen = choose(billions * 1e9, ranks, gigabytes * 1e9, recipe, activations * 1e9)
    for stage, need in enumerate(chosen.needs):
        mark = "←" if stage == chosen.stage else ""
        print(f"{STAGES[stage]:7} {need / 1e9:8.1f} GB of {gigabytes:g} {mark}")
    print(chosen.why)
    assert chosen.needs == sorted(chosen.needs, reverse=True)


if __name__ == "__main__":
    run_script(main)
