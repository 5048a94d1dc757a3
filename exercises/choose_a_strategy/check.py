"""Five clusters, and a strategy for each: what fits, what is fastest, and what is simplest."""

from collections.abc import Callable
from typing import Any, NamedTuple

from distributed.cost import Cluster, Link
from distributed.plan import INTERCONNECTS, Option, plan
from playground.exercises.check import Wrong

HINTS = [
    "`plan(case.parameters, case.cluster, case.memory).options` has every strategy with its "
    "memory, whether it fits, and its step; `print(as_text(found, case.memory))` shows a table.",
    "What does not fit is out, however fast it is. Of what fits, less memory is worth nothing; "
    "seconds are.",
    "Find the fastest of those that fit. Then take the first in the list that fits and needs at "
    "most 1 % more time.",
]


class Case(NamedTuple):
    """A model of so many parameters, on a cluster whose ranks have `memory` bytes each."""

    name: str
    parameters: float
    cluster: Cluster
    memory: float


def hosts(ranks: int, per_host: int, inside: str, between: float, speed: float) -> Cluster:
    return Cluster(ranks, per_host, INTERCONNECTS[inside], Link(10e-6, between), speed)


CASES = [
    Case("a small model on one host", 1e9, hosts(8, 8, "nvlink", 50e9, 400e12), 80e9),
    Case("slow GPUs with fast links", 6e9, hosts(8, 8, "nvlink", 50e9, 15e12), 80e9),
    Case("fast GPUs with fast links", 7e9, hosts(8, 8, "nvlink", 50e9, 400e12), 80e9),
    Case("four single GPUs on Ethernet", 3e9, hosts(4, 1, "ethernet", 12.5e9, 400e12), 48e9),
    Case("four hosts of sixteen", 30e9, hosts(64, 16, "nvlink", 50e9, 400e12), 80e9),
]


def check(choose: Callable[..., Any]) -> str:
    for case in CASES:
        found = plan(case.parameters, case.cluster, case.memory)
        options = {option.name: option for option in found.options}
        best, name = found.recommended, choose(case)
        assert best is not None
        if name not in options:
            raise Wrong(f"{case.name}: {name!r} is no strategy. Choose from {', '.join(options)}")
        if name != best.name:
            raise Wrong(why(case, options[name], best, list(options)))
    return "Right: for all five, what fits and is fastest, and the simplest of those."


def why(case: Case, chosen: Option, best: Option, order: list[str]) -> str:
    """Why the chosen option is not the best one."""
    here = f"{case.name} ({case.parameters / 1e9:g} billion parameters, {case.cluster.ranks} GPUs)"
    size = sum(chosen.memory.values())
    if not chosen.fits:
        largest = max(chosen.memory, key=lambda part: chosen.memory[part])
        return (
            f"{here}: {chosen.name} does not fit. It needs {size / 1e9:.1f} GB on each GPU, "
            f"{(size - case.memory) / 1e9:.1f} GB more than there are; {largest} are the most of "
            f"it, {chosen.memory[largest] / 1e9:.1f} GB"
        )
    slower = chosen.step.total / best.step.total - 1
    if slower > 0.01:
        waits = [f"{100 * (1 - option.efficiency):.0f} %" for option in (chosen, best)]
        return (
            f"{here}: {chosen.name} fits, but another that fits is faster: its step of "
            f"{chosen.step.total:.3g} s takes {100 * slower:.0f} % longer. It waits for messages "
            f"{waits[0]} of the time, and the other {waits[1]}"
        )
    between = order.index(chosen.name) - order.index(best.name)
    return (
        f"{here}: {chosen.name} fits and is as fast as any, within 1 %, but a simpler one is, too: "
        f"it is {between} earlier in the list {', '.join(order)}"
    )
