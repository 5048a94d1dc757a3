"""Five clusters, and a strategy for each: what fits, what is fastest, and what is simplest."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.planner.hardware import gpu
from distributed.planner.job import Job, Option, cluster_of
from distributed.planner.shapes import of_size
from distributed.planner.strategy import CLOSE, plan
from playground.exercises.check import Draw, Wrong

HINTS = [
    "`plan(case.job, case.cluster, case.memory, reserve=0).options` has every strategy with its "
    "memory, whether it fits, and its step; "
    "`print(as_text(found, case.job, case.cluster, case.memory))` shows a table.",
    "What does not fit is out, however fast it is. Of what fits, less memory is worth nothing; "
    "seconds are.",
    "Find the fastest of those that fit. Then take the first in the list that fits and needs at "
    "most 2% more time.",
]


class Case(NamedTuple):
    """A job on a cluster whose ranks have `memory` bytes each."""

    name: str
    job: Job
    cluster: Cluster
    memory: float


def on_h100(name: str, parameters: float, gpus: int, network: float | None = None) -> Case:
    """One row of 2,048 tokens on each GPU; `network` is a host's, in bytes/s."""
    job = Job(of_size(parameters), checkpoint="full")
    return Case(name, job, cluster_of(gpu("h100"), gpus, network=network, speed=400e12), 80e9)


CASES = [
    on_h100("a small model on one host", 1e9, 8),
    on_h100("seven billion on one host", 7e9, 8),
    on_h100("three billion, eight hosts, slow links", 3e9, 64, 25e9),
    on_h100("thirty-two billion, eight hosts, slow links", 32e9, 64, 25e9),
    on_h100("seventy billion on eight hosts", 70e9, 64),
]


def drawn(draw: Draw, billions: int) -> Case:
    """A cluster on which a model of at least so many billion parameters fits in some way."""
    while True:
        gpus, network = 8 * draw(1, 8), 12.5e9 * 2 ** draw(0, 5)
        parameters = 1e9 * draw(billions, 40)
        case = on_h100(f"drawn, {network / 1e9:g} GB/s out of a host", parameters, gpus, network)
        if plan(case.job, case.cluster, case.memory, reserve=0).recommended:
            return case


def close(draw: Draw) -> Case:
    """A cluster on which the fastest strategy is not the simplest within 2% of it."""
    return on_h100("drawn, 46 GB/s out of a host", 1e9 * draw(5, 12), 64, 46e9)


def check(choose: Callable[..., Any], *, draw: Draw) -> str:
    for case in chain(CASES, (drawn(draw, billions) for billions in (8, 1)), [close(draw)]):
        found = plan(case.job, case.cluster, case.memory, reserve=0)
        options = {option.name: option for option in found.options}
        best, name = simplest(found.options), choose(case)
        if name not in options:
            raise Wrong(f"{case.name}: {name!r} is no strategy. Choose from {', '.join(options)}")
        if name != best.name:
            raise Wrong(why(case, options[name], best, found.options))
    return (
        "Right: for all five and three more, what fits and is fastest, and the simplest of those."
    )


def simplest(options: Sequence[Option]) -> Option:
    """The first in the list that fits and is as fast as the fastest, within 2%."""
    fitting = [each for each in options if each.fits]
    fastest = min(each.step.total for each in fitting)
    return next(each for each in fitting if each.step.total <= (1 + CLOSE) * fastest)


def why(case: Case, chosen: Option, best: Option, options: Sequence[Option]) -> str:
    """Why the chosen option is not the best one."""
    billions = case.job.model.parameters / 1e9
    here = f"{case.name} ({billions:.3g} billion parameters, {case.cluster.ranks} GPUs)"
    size = sum(chosen.memory.values())
    if not chosen.fits:
        largest = max(chosen.memory, key=lambda part: chosen.memory[part])
        return (
            f"{here}: {chosen.name} does not fit. It needs {size / 1e9:.1f} GB on each GPU, "
            f"{(size - case.memory) / 1e9:.1f} GB more than there are; {largest} are the most of "
            f"it, {chosen.memory[largest] / 1e9:.1f} GB"
        )
    fastest = min((each for each in options if each.fits), key=lambda each: each.step.total)
    slower = chosen.step.total / fastest.step.total - 1
    if slower > CLOSE:
        waits = [f"{100 * (1 - option.step.efficiency):.0f}%" for option in (chosen, fastest)]
        return (
            f"{here}: {chosen.name} fits, but another that fits is faster: its step of "
            f"{chosen.step.total:.3g} s takes {100 * slower:.0f}% longer. It waits for messages "
            f"{waits[0]} of the time, and the other {waits[1]}"
        )
    order = [option.name for option in options]
    between = order.index(chosen.name) - order.index(best.name)
    return (
        f"{here}: {chosen.name} fits and is as fast as any, within 2%, but a simpler one is, too: "
        f"it is {between} earlier in the list {', '.join(order)}"
    )
