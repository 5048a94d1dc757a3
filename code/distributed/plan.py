"""Which strategy for which model on which machines: what fits, how long a step takes, and why.

    python -m distributed.plan --params 70e9 --gpus 64 --gpu-memory 80GB --interconnect nvlink

Memory is that of `peak_memory`, time that of `cost`. What machines can do is stated, not measured:
give your own numbers where you have them.
"""

import importlib
import json
from typing import Any, NamedTuple

from distributed.cost import Cluster, Link, Step, step_ddp, step_hsdp, step_zero
from distributed.model_states import RECIPES, STAGES
from distributed.peak_memory import Shape, bytes_at_peak
from distributed.published import CASES, median_deviation
from distributed.runtime.script import Parser, to_bytes

# Bandwidth inside a host, in each direction, for each device: what vendors state (bytes/s).
INTERCONNECTS = {
    "nvlink": Link(5e-6, 450e9),  # fourth generation: 900 GB/s in both directions
    "pcie": Link(10e-6, 32e9),  # 16 lanes of the fourth generation
    "ethernet": Link(30e-6, 12.5e9),  # 100 Gbit/s
}
RECIPE = "bf16, Adam in fp32, fp32 master copy"
WORDS = 50257  # of GPT-2 and GPT-3
ALLOWANCE = 0.05  # of all the rest: a guess at what an allocator loses between pieces


class Option(NamedTuple):
    """One strategy: bytes on each rank by what they are for, whether they fit, and its step."""

    name: str
    memory: dict[str, float]
    fits: bool
    step: Step

    @property
    def efficiency(self) -> float:
        """The share of a step in which ranks compute."""
        return self.step.compute / self.step.total


class Plan(NamedTuple):
    """All options, the recommended one (None: nothing fits), and words to it."""

    options: list[Option]
    recommended: Option | None
    why: str


def shape_for(parameters: float, context: int, words: int = WORDS) -> Shape:
    """A transformer of about so many parameters: deeper and wider together, heads of 128."""
    layers = 2
    while 12 * layers * (128 * layers) ** 2 < parameters and layers < 512:
        layers += 1
    d = max(1, round((parameters / 12 / layers) ** 0.5))
    return Shape(layers, d, max(1, d // 128), context, words)


def plan(
    parameters: float,
    cluster: Cluster,
    memory: float,
    rows: float = 1,
    context: int = 2048,
    recipe: str = RECIPE,
    checkpoint: bool = False,
    shape: Shape | None = None,
    allowance: float = ALLOWANCE,
    words: int = WORDS,
) -> Plan:
    """Compare DDP, ZeRO-1, 2 and 3, and HSDP, for `rows` of `context` tokens on each rank.

    `memory` is bytes of each rank, `allowance` a share of the others. Without a `shape`, layers are
    guessed from the parameters. Raises ValueError for numbers that make no sense. Times are rather
    too short than too long: see `published.median_deviation`.
    """
    check(parameters, cluster, memory, rows, context, recipe, words, allowance)
    shape, sizes = shape or shape_for(parameters, context, words), RECIPES[recipe]
    flops = (8 if checkpoint else 6) * parameters * rows * context
    blocks = [parameters / shape.layers * sizes.parameters] * shape.layers
    ratio = sizes.gradients / sizes.parameters
    hosts = -(-cluster.ranks // cluster.per_host)
    options = []
    for name in [*STAGES, *(["HSDP"] if hosts > 1 and cluster.per_host > 1 else [])]:
        stage = STAGES.index(name) if name in STAGES else 3
        sharded = cluster.per_host if name == "HSDP" else cluster.ranks
        held = bytes_at_peak(
            shape, rows, sharded, stage, sizes, checkpoint, 25e6, allowance, parameters
        )
        if stage == 0:
            step = step_ddp(cluster, flops, [size * ratio for size in blocks])
        elif name == "HSDP":
            step = step_hsdp(cluster, flops, blocks, ratio)
        else:
            step = step_zero(cluster, flops, stage, blocks, ratio)
        options.append(Option(name, held, sum(held.values()) <= memory, step))
    return recommend(options, memory)


def recommend(options: list[Option], memory: float) -> Plan:
    """The fastest that fits; of those within 1 % of it the simplest."""
    fitting = [option for option in options if option.fits]
    if not fitting:
        least = min(options, key=lambda option: sum(option.memory.values()))
        needed = sum(least.memory.values()) / memory
        largest = max(least.memory, key=lambda part: least.memory[part])
        ways = {
            "activations": "checkpoint activations, or take fewer rows",
            "gathered": "make blocks smaller",
        }
        way = ways.get(largest, "more GPUs, 8-bit states, or states in the host's memory")
        needs = f"{least.name} needs the least, {needed:.1f} × the memory"
        return Plan(options, None, f"nothing fits: {needs}, most of it for {largest}: {way}")
    fastest = min(option.step.total for option in fitting)
    best = next(option for option in fitting if option.step.total <= 1.01 * fastest)
    why = ["it fits, and no other that fits is faster"]
    simpler = options[: options.index(best)]
    if left := [option.name for option in simpler if not option.fits]:
        why.append(f"{', '.join(left)} would not fit")
    for option in simpler:
        if option.fits:
            longer, waits = option.step.total / best.step.total - 1, 1 - option.efficiency
            why.append(f"{option.name} fits, too: {longer:.0%} slower, {waits:.0%} of it waiting")
    return Plan(options, best, "; ".join(why))


# The least and the most that each argument may be: with room above the largest there is.
LIMITS = {
    "params": (1, 1e16),
    "gpus": (1, 1e8),
    "per_host": (1, 1e6),
    "gpu_memory": (1, 1e16),  # bytes
    "network": (1, 1e16),  # bytes/s
    "interconnect": (1, 1e16),  # bytes/s
    "rows": (1e-6, 1e9),  # less than 1 where several ranks share a row
    "context": (1, 1e9),
    "speed": (1, 1e20),  # operations/s
    "words": (1, 1e9),
    "allowance": (0, 10),
}


def check(
    parameters: float,
    cluster: Cluster,
    memory: float,
    rows: float,
    context: int,
    recipe: str,
    words: int = WORDS,
    allowance: float = ALLOWANCE,
) -> None:
    """Raise ValueError, naming the argument, for what makes no sense."""
    given = {
        "params": parameters,
        "gpus": cluster.ranks,
        "per_host": cluster.per_host,
        "gpu_memory": memory,
        "network": cluster.network.bandwidth,
        "interconnect": cluster.inside.bandwidth,
        "rows": rows,
        "context": context,
        "speed": cluster.speed,
        "words": words,
        "allowance": allowance,
    }
    for name, (least, most) in LIMITS.items():
        if not least <= given[name] <= most:
            raise ValueError(f"{name}={given[name]:g}: give {least:g} to {most:g}")
    if cluster.ranks > cluster.per_host and cluster.ranks % cluster.per_host:
        hosts = f"hosts of per_host={cluster.per_host} would not all be full"
        raise ValueError(f"gpus={cluster.ranks}: {hosts}; give a multiple of it")
    if recipe not in RECIPES:
        raise ValueError(f"recipe={recipe!r}: choose one of {'; '.join(RECIPES)}")


def as_text(found: Plan, memory: float) -> str:
    """A table for people. GB are 10⁹ bytes."""
    lines = [f"{'':8}{'GB':>9}  {'fits':4} {'step':>9} {'efficiency':>10}   the largest parts (GB)"]
    for option in found.options:
        parts = sorted(option.memory.items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts)
        size, fits = sum(option.memory.values()) / 1e9, "yes" if option.fits else "no"
        time = f"{option.step.total:8.2f}s {option.efficiency:10.0%}"
        lines.append(f"{option.name:8}{size:9.1f}  {fits:4} {time}   {shown}")
    name = found.recommended.name if found.recommended else "none"
    lines.append(f"memory: {memory / 1e9:g} GB; recommended: {name}: {found.why}")
    return "\n".join([*lines, how_far_off()])


def how_far_off() -> str:
    """How right such predictions have been: to be read beside each of them."""
    off = [case.deviation for case in CASES]
    high = sum(deviation > 0 for deviation in off)
    return (
        f"expect longer steps: {high} of {len(off)} published runs scaled worse than this model "
        f"predicts, whose efficiency is off by {median_deviation():+.1%} (median)"
    )


def as_json(found: Plan) -> str:
    """All of it, for programs: bytes and seconds; efficiency is rather too high."""
    options: list[dict[str, Any]] = [
        {
            "name": option.name,
            "bytes": option.memory,
            "fits": option.fits,
            "step_s": option.step.total,
            "compute_s": option.step.compute,
            "communication_s": option.step.communication,
            "efficiency": option.efficiency,
        }
        for option in found.options
    ]
    name = found.recommended.name if found.recommended else None
    whole = {
        "recommended": name,
        "why": found.why,
        "efficiency_too_high_by": median_deviation(),
        "options": options,
    }
    return json.dumps(whole, indent=1, allow_nan=False)


def measure_module(path: str, context: int) -> tuple[int, Shape]:
    """Parameters and shape of what `path`, package.module:function, makes on the meta device.

    Its layers are the longest row of equal ones, width and words those of its first embedding; the
    rest is guessed by `shape_for`. Raises ValueError if there is no such module.
    """
    import torch

    package, _, name = path.partition(":")
    try:
        make = getattr(importlib.import_module(package), name)
        with torch.device("meta"):
            module = make()
            count = sum(p.numel() for p in module.parameters())
    except Exception as error:  # whatever somebody else's code may raise
        raise ValueError(f"module={path!r}: {error}; give package.module:function") from None
    shape = shape_for(count, context)
    layers = 0
    for part in reversed([*module.modules()]):  # the first embedding has the last word
        if isinstance(part, torch.nn.Embedding):
            v, d = part.weight.shape
            shape = shape._replace(d=d, v=v, heads=max(1, d // 128))
        elif isinstance(part, torch.nn.ModuleList | torch.nn.Sequential):
            sizes = {sum(p.numel() for p in layer.parameters()) for layer in part}
            layers = max(layers, len(part) if len(sizes) == 1 and sizes != {0} else 0)
    return count, shape._replace(layers=layers or shape.layers)


def main(arguments: list[str] | None = None) -> None:
    """The command line: see --help."""
    parser = Parser(prog="python -m distributed.plan", description=__doc__)
    add = parser.add_argument
    add("--params", type=float, default=7e9)
    add("--module", help="take another model: package.module:function, called without arguments")
    add("--gpus", type=int, default=8)
    add("--per-host", type=int, default=8)
    add("--gpu-memory", default="80GB", help="such as 80GB (10⁹) or 80GiB (2³⁰)")
    add("--interconnect", choices=INTERCONNECTS, default="nvlink", help="inside a host")
    add("--network", default="50GB", help="of a host, in a second: 50GB is 400 Gbit")
    add("--speed", type=float, default=400e12, help="operations per second of a GPU, measured")
    add("--rows", type=float, default=1, help="on each GPU")
    add("--context", type=int, default=2048, help="tokens in a row")
    add("--recipe", default=RECIPE, help="; ".join(RECIPES))
    add("--words", type=int, default=WORDS, help="that the last layer tells apart")
    add("--allowance", type=float, default=ALLOWANCE, help="share of memory lost between pieces")
    add("--checkpoint", action="store_true", help="activations are computed again")
    add("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        network = Link(10e-6, to_bytes(given.network))
        cluster = Cluster(
            given.gpus, given.per_host, INTERCONNECTS[given.interconnect], network, given.speed
        )
        memory = to_bytes(given.gpu_memory)
        numbers = given.rows, given.context, given.recipe, given.checkpoint
        parameters, shape = given.params, None
        if given.module:
            parameters, shape = measure_module(given.module, given.context)
        found = plan(parameters, cluster, memory, *numbers, shape, given.allowance, given.words)
    except ValueError as error:
        parser.error(str(error))
    print(as_json(found) if given.json else as_text(found, memory))


if __name__ == "__main__":
    main(None if "__file__" in globals() else [])  # in a cell the command line is the kernel's
