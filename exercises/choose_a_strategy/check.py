"""Choose a strategy for several clusters by the planner's rule: memory, then time, then ties."""

from collections.abc import Callable
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.planner.hardware import gpu
from distributed.planner.job import Job, Option, cluster_of
from distributed.planner.shapes import of_size
from distributed.planner.strategy import CLOSE, RESERVE, Plan, plan
from playground.exercises.check import Draw, Wrong

HINTS = [
    "First leave out what doesn't fit, however fast it is: `option.needs <= 0.9 * case.memory`.",
    "`min(option.step.total for option in fitting)` is the shortest step. Anything within 2% "
    "of that is a tie.",
    "The options are listed simplest first. So if DDP or ZeRO-1 is tied, take the first of "
    "them. Otherwise, use `min(tied, key=lambda option: option.needs)`.",
]
SIMPLE = ("DDP", "ZeRO-1")


class Case(NamedTuple):
    """A job on a cluster whose GPUs have `memory` bytes each."""

    name: str
    job: Job
    cluster: Cluster
    memory: float

    @property
    def plan(self) -> Plan:
        return plan(self.job, self.cluster, self.memory)

    @property
    def options(self) -> list[Option]:
        return self.plan.options


def on_h100(name: str, parameters: float, gpus: int, network: float | None = None) -> Case:
    """2,048 tokens per GPU; `network` is the bandwidth of a host, in bytes/s."""
    job = Job(of_size(parameters), checkpoint="full")
    return Case(name, job, cluster_of(gpu("h100"), gpus, network=network, speed=400e12), 80e9)


CASES = [
    on_h100("a small model on one host", 1e9, 8),
    on_h100("seventy billion, fast network", 70e9, 64, 400e9),
    on_h100("three billion, slow network", 3e9, 64, 25e9),
    on_h100("seven billion on one host", 7e9, 8),
    on_h100("thirty billion, faster network", 30e9, 64, 100e9),
]


def fits(option: Option, case: Case) -> bool:
    return option.needs <= (1 - RESERVE) * case.memory


def drawn(draw: Draw, billions: int) -> Case:
    """A cluster on which a model of at least so many billion parameters fits with the reserve."""
    while True:
        gpus, network = 8 * draw(1, 8), 12.5e9 * 2 ** draw(0, 5)
        name = f"random: {network / 1e9:g} GB/s per host"
        case = on_h100(name, 1e9 * draw(billions, 40), gpus, network)
        if any(fits(option, case) for option in case.options):
            return case


def tied(draw: Draw) -> Case:
    """A cluster on which the fastest strategy is tied with one that needs less memory."""
    return on_h100("random: 46 GB/s per host", 1e9 * draw(14, 24), 64, 46e9)


def check(choose: Callable[..., Any], *, draw: Draw) -> str:
    for case in [*CASES, *(drawn(draw, billions) for billions in (8, 1)), tied(draw)]:
        options = {option.name: option for option in case.options}
        best, name = case.plan.recommended, choose(case)
        assert best is not None
        if name not in options:
            raise Wrong(
                f"{case.name}: {name!r} isn't a strategy here. Choose from {', '.join(options)}"
            )
        if name != best.name:
            raise Wrong(why(case, options[name], best))
    return "Right: for these five clusters and three random ones, you agree with the planner."


def why(case: Case, chosen: Option, best: Option) -> str:
    """Why the chosen option isn't the best one."""
    billions = case.job.model.parameters / 1e9
    here = f"{case.name} ({billions:.3g} billion parameters, {case.cluster.ranks} GPUs)"
    size = f"{chosen.name} needs {chosen.needs / 1e9:.1f} GB per GPU"
    if chosen.needs > case.memory:
        largest = max(chosen.memory, key=lambda part: chosen.memory[part])
        return (
            f"{here}: {chosen.name} doesn't fit. {size}, {(chosen.needs - case.memory) / 1e9:.1f} "
            f"GB too much, and {chosen.memory[largest] / 1e9:.1f} GB of that are {largest}"
        )
    if not fits(chosen, case):
        return (
            f"{here}: {chosen.name} fits only on paper. {size}, which leaves less than a tenth of "
            f"{case.memory / 1e9:g} GB free"
        )
    fitting = [option for option in case.options if fits(option, case)]
    fastest = min(fitting, key=lambda option: option.step.total)
    slower = chosen.step.total / fastest.step.total - 1
    if slower > CLOSE:
        waits = [f"{100 * (1 - option.step.efficiency):.0f}%" for option in (chosen, fastest)]
        return (
            f"{here}: {chosen.name} fits, but its step of {chosen.step.total:.3g} s takes "
            f"{100 * slower:.0f}% longer than the fastest. It waits for messages {waits[0]} of "
            f"the time, and the fastest strategy waits {waits[1]}"
        )
    if best.name in SIMPLE:
        return f"{here}: {chosen.name} is tied with {best.name}, which is simpler"
    return (
        f"{here}: {chosen.name} is tied with a strategy that needs less memory, "
        f"{best.needs / 1e9:.1f} GB instead of {chosen.needs / 1e9:.1f}"
    )
