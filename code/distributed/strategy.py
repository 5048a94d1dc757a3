"""Which strategy for which model on which GPUs: what fits, how long a step takes, and why.

One rule: of all that fits, the one with the least exposed communication; of those within 2 % of
it the simplest. Memory is that of `model_states` and `shapes`, time that of `schedules`, the speed
of a GPU that of `speed`. Every number may be replaced by one that you have measured.
"""

from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.hardware import Gpu
from distributed.model_states import RECIPES, Recipe, per_rank
from distributed.schedules import STACKS
from distributed.shapes import CHECKPOINTS, FUSED, PLAIN, Model
from distributed.speed import RECOMPUTE
from distributed.streams import Step, Work, simulate

RECIPE = "bf16, Adam in fp32, fp32 master copy"
WIRE = 0.8  # of what vendors state, what collectives of many MB reach
ALLOWANCE = 0.05  # of all the rest: what an allocator loses between pieces
CONTEXT = 1.5e9  # bytes that CUDA, NCCL and their kernels take on each GPU
CLOSE = 0.02  # strategies whose steps differ by less are equally fast


class Job(NamedTuple):
    """What each rank does in a step: `accumulate` micro-batches of `rows` × `context` tokens."""

    model: Model
    rows: float = 1
    context: int = 2048
    accumulate: int = 1
    checkpoint: str = "auto"  # the least that fits, or one of CHECKPOINTS
    recipe: Recipe = RECIPES[RECIPE]
    fused_loss: bool = False

    @property
    def tokens(self) -> float:
        """Of a micro-batch of one rank."""
        return self.rows * self.context


class Option(NamedTuple):
    """One strategy: bytes on each rank by what they are for, whether they fit, and its step."""

    name: str
    checkpoint: str
    memory: dict[str, float]
    fits: bool
    step: Step

    @property
    def needs(self) -> float:
        return sum(self.memory.values())


class Plan(NamedTuple):
    """All options, the recommended one (None: nothing fits), and words to it."""

    options: list[Option]
    recommended: Option | None
    why: str


def cluster_of(
    one: Gpu, gpus: int, per_host: int | None = None, network: float | None = None,
    speed: float = 0.0, share: float = WIRE,
) -> Cluster:  # fmt: skip
    """Links of a cluster of these GPUs; `network` is a host's, in bytes/s and one direction."""
    local = min(gpus, per_host or one.per_host)
    if network is None:
        network = local * one.network
    inside, between = Link(3e-6, share * one.inside), Link(10e-6, share * network)
    return Cluster(gpus, local, inside, between, speed)


def memory_of(job: Job, name: str, cluster: Cluster, checkpoint: str) -> dict[str, float]:
    """Bytes of each rank at the peak of a step, by what they are for."""
    model, recipe = job.model, job.recipe
    stage = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2}.get(name, 3)
    sharded = min(cluster.ranks, cluster.per_host) if name == "HSDP" else cluster.ranks
    found = per_rank(model.parameters, sharded, stage, recipe)
    scores = FUSED if job.fused_loss else PLAIN
    found["activations"] = model.activations(job.tokens, checkpoint, recipe.parameters, scores)
    if stage == 3 and sharded > 1:
        found["gathered"] = (2 * model.block + model.root) * recipe.parameters
    if stage >= 2 and sharded > 1:
        found["buckets"] = max(model.block, model.root) * recipe.gradients
    found["allowance"] = ALLOWANCE * sum(found.values()) + CONTEXT
    return found


def work_of(job: Job, cluster: Cluster, checkpoint: str) -> Work:
    """Embeddings first, then all layers; each computes in proportion to its parameters."""
    model = job.model
    sizes = [model.root, *[model.block] * model.layers]
    seconds = model.flops(job.context) * job.tokens / cluster.speed
    again = RECOMPUTE[checkpoint] * seconds
    return Work(
        cluster,
        [job.recipe.parameters * size for size in sizes],
        [job.recipe.gradients * size for size in sizes],
        [size / model.parameters for size in sizes],
        seconds / 3,
        seconds * 2 / 3 + again,
        job.accumulate,
    )


def option(job: Job, name: str, cluster: Cluster, memory: float, stack: str = "pytorch") -> Option:
    """A strategy with the least checkpointing that fits, or the one asked for."""
    wanted = CHECKPOINTS if job.checkpoint == "auto" else (job.checkpoint,)
    for checkpoint in wanted:
        held = memory_of(job, name, cluster, checkpoint)
        if sum(held.values()) <= memory:
            break
    step = simulate(STACKS[stack][name], work_of(job, cluster, checkpoint))
    return Option(name, checkpoint, held, sum(held.values()) <= memory, step)


def plan(job: Job, cluster: Cluster, memory: float, stack: str = "pytorch") -> Plan:
    """Compare all strategies on ranks with `memory` bytes each. Raises ValueError for nonsense."""
    check(job, cluster, memory, stack)
    several = cluster.ranks > cluster.per_host > 1
    names = [name for name in STACKS[stack] if name != "HSDP" or several]
    return recommend([option(job, name, cluster, memory, stack) for name in names], memory)


def recommend(options: list[Option], memory: float) -> Plan:
    """Of what fits the fastest; of those about as fast the simplest, which comes first."""
    fitting = [each for each in options if each.fits]
    if not fitting:
        return Plan(options, None, what_to_change(options, memory))
    fastest = min(each.step.total for each in fitting)
    best = next(each for each in fitting if each.step.total <= (1 + CLOSE) * fastest)

    spare, waits = memory - best.needs, best.step.exposed / best.step.total
    why = [f"it fits with {spare / 1e9:.0f} GB to spare and waits {waits:.1%} of a step"]
    simpler = options[: options.index(best)]
    if too_large := [each.name for each in simpler if not each.fits]:
        why.append(f"{', '.join(too_large)} would not fit")
    others: dict[str, list[str]] = {}
    for other in fitting:
        if other is not best:
            margin = other.step.total / best.step.total - 1
            shown = f"{margin:.1%} slower" if margin >= 0 else f"{-margin:.1%} faster"
            others.setdefault("as fast" if abs(margin) < 5e-4 else shown, []).append(other.name)
    for shown, names in others.items():
        fit = "fits, too, and is" if len(names) == 1 else "fit, too, and are"
        why.append(f"{', '.join(names)} {fit} {shown}")
    return Plan(options, best, "; ".join(why))


def what_to_change(options: list[Option], memory: float) -> str:
    """When nothing fits: what is too large, and the way out."""
    least = min(options, key=lambda each: each.needs)
    largest = max(least.memory, key=lambda part: least.memory[part])
    ways = {
        "activations": "take fewer rows, or split a row over ranks",
        "gathered": "make layers smaller, or split them over ranks",
    }
    way = ways.get(largest, "more GPUs, 8-bit states, or states in the host's memory")
    needs = f"{least.name} needs the least, {least.needs / memory:.1f} × the memory"
    return f"nothing fits: {needs}; most of it is for {largest}: {way}"


# The least and the most that each argument may be: with room above the largest there is.
LIMITS = {
    "params": (1, 1e16),
    "gpus": (1, 1e8),
    "per_host": (1, 1e6),
    "gpu_memory": (1, 1e16),  # bytes
    "network": (1, 1e16),  # bytes/s of a host
    "inside": (1, 1e16),  # bytes/s
    "rows": (1e-6, 1e9),  # less than 1 where several ranks share a row
    "context": (1, 1e9),
    "accumulate": (1, 1e6),
    "speed": (1, 1e20),  # FLOP/s
    "tokens": (1, 1e18),
}


def within(name: str, value: float) -> None:
    """Raise ValueError, naming the argument, for what is too small, too large or no number."""
    least, most = LIMITS[name]
    if not least <= value <= most:
        raise ValueError(f"{name}={value:g}: give {least:g} to {most:g}")


def check(job: Job, cluster: Cluster, memory: float, stack: str = "pytorch") -> None:
    """Raise ValueError, naming the argument, for what makes no sense."""
    given = {
        "params": job.model.parameters,
        "gpus": cluster.ranks,
        "per_host": cluster.per_host,
        "gpu_memory": memory,
        "network": cluster.network.bandwidth,
        "inside": cluster.inside.bandwidth,
        "rows": job.rows,
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


class Run(NamedTuple):
    """What a plan means for a whole training run."""

    tokens_per_second: float
    days: float
    gpu_hours: float


def run_of(found: Option, job: Job, ranks: int, tokens: float) -> Run:
    """Days and GPU-hours for so many tokens, without failures, evaluation and restarts."""
    rate = ranks * job.accumulate * job.tokens / found.step.total
    return Run(rate, tokens / rate / 86400, tokens / rate / 3600 * ranks)
