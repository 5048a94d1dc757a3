"""What the fuzzer draws: a network, how it is trained, on how many ranks, and what is odd about it.

A number is all that a draw needs to be made again. What a strategy's docstring rules out is not
drawn; what it refuses is, as an odd use (`odd.py`).
"""

from dataclasses import dataclass, replace
from random import Random

from tests.fuzz.layers import LAYERS
from tests.fuzz.optimizers import BOUNDED, OPTIMIZERS, SCHEDULES

ZERO3 = ("zero3", "zero3, no prefetch", "zero3, kept after forward", "hsdp")
STRATEGIES = ("ddp", "ddp, static graph", "zero1", "zero2", *ZERO3)
LOW = ("float32", "bfloat16", "float16", "autocast")  # the last is float32, computed in bfloat16


@dataclass(frozen=True)
class Part:
    """One block of the network."""

    hidden: int
    low: str = ""  # the dtype of a parameter beside the others, which are float64
    frozen: str = ""  # "bias" or "all"
    buffers: bool = False
    again: str = ""  # how its activations are computed twice: "reentrant" or "plain"
    tied: str = ""  # to what else its first weight belongs: "block" (the first one) or "root"
    layer: str = ""  # of LAYERS


@dataclass(frozen=True)
class Pass:
    """A forward and a backward pass: whether it sends, and what each rank leaves out."""

    sync: bool
    without: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Segment:
    """Some steps on so many ranks; the next segment goes on from what this one saves."""

    strategy: str
    ranks: int
    steps: tuple[tuple[Pass, ...], ...]
    group: str = "launch"  # or "no board", "ring", "shared"
    per_host: int = 0  # HSDP
    bucket_bytes: int = 25_000_000
    find_unused: bool = False
    partition: str = "flat"


@dataclass(frozen=True)
class Draw:
    number: int
    width: int
    parts: tuple[Part, ...]
    order: tuple[int, ...]  # in which blocks are called, the same on all ranks
    output: str  # what a block returns: "tuple", "dict", "named" or "dataclass"
    optimizer: str  # of OPTIMIZERS
    schedule: str  # of SCHEDULES
    groups: bool  # whether vectors are a parameter group of their own
    param_dtype: str  # of a network of asides alone, whose gradients are as exact as that dtype
    reduce_dtype: str
    clip: float | None
    passes: str  # "in turn", "forwards first" or "one backward"
    evaluate: bool  # between steps
    segments: tuple[Segment, ...]
    odd: str = ""

    @property
    def zero(self) -> bool:
        return not self.segments[0].strategy.startswith("ddp")

    @property
    def may_refuse(self) -> bool:
        """Whether an error of ours is an answer, too."""
        layers = any(LAYERS[part.layer].is_refused for part in self.parts if part.layer)
        return bool(self.odd) or layers or (self.zero and OPTIMIZERS[self.optimizer].is_refused)

    @property
    def alike(self) -> bool:
        """Whether blocks are called other than once each, in their order: then so on all ranks."""
        return self.order != tuple(range(len(self.parts)))


def draw_parts(
    random: Random, mixed: bool, again: str, ties: list[str], layers: list[str]
) -> tuple[Part, ...]:
    return tuple(
        Part(
            hidden=random.choice([1, 2, 3, 5, 7]),
            low=random.choice(LOW) if mixed and random.random() < 0.6 else "",
            frozen=random.choice(["", "", "", "bias", "all"]),
            buffers=random.random() < 0.3,
            again=again if random.random() < 0.6 else "",
            tied=random.choice(["", "", *ties]),
            layer=random.choice(layers) if layers and random.random() < 0.4 else "",
        )
        for _ in range(random.randint(1, 5))
    )


def draw_order(random: Random, blocks: int) -> tuple[int, ...]:
    order = [*range(blocks)]
    kind = random.choice(["once", "once", "once", "each twice", "one twice", "another"])
    if kind == "each twice":
        order = [i for i in order for _ in range(2)]
    elif kind == "one twice":
        order.insert(place := random.randrange(blocks), place)
    elif kind == "another":
        random.shuffle(order)
    return tuple(order)


def draw_without(random: Random, draw: Draw) -> tuple[str, ...]:
    """What one forward pass leaves out; something of the root always has a gradient."""
    things = []
    for i, part in enumerate(draw.parts):
        things += [f"extra {i}"] + [f"aside {i}"] * bool(part.low)
        if part.again:
            things.append(f"again {i}")
        elif not any(p.again == "reentrant" for p in draw.parts) and not draw.alike:
            things.append(f"behind {i}")  # no gradient goes back from here
        if not draw.alike:
            things.append(f"block {i}")
    chosen = random.sample(things, random.randint(0, min(4, len(things))))
    if not any(thing.startswith("behind") for thing in chosen) and random.random() < 0.2:
        chosen.append("last")
    return tuple(sorted(chosen))


def with_blocks_of(first: tuple[str, ...], mine: tuple[str, ...]) -> tuple[str, ...]:
    """What a rank leaves out in ZeRO-3, where it calls the same blocks as the first rank."""
    blocks = [thing for thing in first if thing.startswith("block")]
    return tuple(sorted([*blocks, *(thing for thing in mine if not thing.startswith("block"))]))


def draw_segment(random: Random, draw: Draw, strategy: str, ranks: int) -> Segment:
    per_host = random.choice([n for n in (1, 2, 4) if ranks % n == 0]) if strategy == "hsdp" else 0
    static = strategy == "ddp, static graph"
    may_skip = any(LAYERS[part.layer].leaves_out for part in draw.parts if part.layer)
    find_unused = strategy == "ddp" and (may_skip or random.random() < 0.7)
    leaves_out = draw.zero or find_unused or static
    fixed = [draw_without(random, draw) for _ in range(ranks)]

    def draw_pass(last: bool) -> Pass:
        without = [draw_without(random, draw) if random.random() < 0.6 else () for _ in fixed]
        # Where a block is checkpointed reentrantly, ranks must leave out the same.
        if strategy in ZERO3 and any(part.again == "reentrant" for part in draw.parts):
            without = without[:1] * ranks
        elif strategy in ZERO3:
            without = [with_blocks_of(without[0], mine) for mine in without]
        may_wait = draw.passes == "in turn" and not static and (draw.zero or not last)
        chosen = fixed if static else without if leaves_out else [()] * ranks
        return Pass(not (may_wait and random.random() < 0.4), tuple(chosen))

    steps = []
    for _ in range(random.choice([1, 2, 2, 3])):
        count = random.choice([1, 1, 2, 3])
        steps.append(tuple(draw_pass(i == count - 1) for i in range(count)))
    return Segment(
        strategy,
        ranks,
        tuple(steps),
        group=random.choice(["launch", "launch", "no board", "ring", "shared"]),
        per_host=per_host,
        bucket_bytes=random.choice([1, 100, 25_000_000]),
        find_unused=find_unused,
        partition=random.choice(["flat", "flat", "parameter"]),
    )


def draw_ranks(random: Random, strategy: str) -> list[int]:
    """How many ranks each segment has."""
    choices = [1, 2, 4] if strategy == "hsdp" else [1, 2, 2, 3, 3, 4, 4]
    count = random.choices([1, 2, 4], [16, 3, 1])[0]
    return [4, 2, 3, 1] if count == 4 else [random.choice(choices) for _ in range(count)]


def draw_layers(strategy: str, again: str, cast: bool, passes: str) -> list[str]:
    """The layers that the strategy allows."""
    if cast:
        return []
    needs = "two forwards" if strategy.startswith("ddp") and passes != "in turn" else ""
    # Where a block is checkpointed reentrantly, ranks must leave out the same.
    alike = strategy == "ddp, static graph" or (strategy in ZERO3 and again == "reentrant")
    fits = [name for name, layer in LAYERS.items() if needs not in layer.cannot]
    return [name for name in fits if not (alike and LAYERS[name].leaves_out)]


def draw_optimizer(random: Random, parts: tuple[Part, ...], bounded: bool) -> str:
    """Complex parameters, and those of few bits, have the optimizers that take any."""
    layers = {part.layer for part in parts}
    rows = BOUNDED if bounded or "complex" in layers else OPTIMIZERS
    return random.choice([n for n, row in rows.items() if row.takes_empty or "lists" not in layers])


def draw_reduce_dtype(random: Random, mixed: bool, cast: bool) -> str:
    """No fewer bits than what is compared to the last digits, or what the bound counts with."""
    if cast:
        return random.choice(["", "float32", "bfloat16", "float64"])
    return random.choice(["", "float64"]) if mixed else ""


def draw(number: int) -> Draw:
    """The draw of this number."""
    random = Random(number)
    strategy = random.choice(STRATEGIES)
    zero = not strategy.startswith("ddp")
    mixed, cast = random.random() < 0.3, zero and random.random() < 0.15
    again = random.choice(["", "", "plain", "reentrant"])
    # Without a static graph, DDP takes one gradient of each parameter in a pass; and with one, as
    # many in each. So does ZeRO-2. A reentrant checkpoint gives one for every call.
    once = again == "reentrant" and strategy in ("ddp", "zero2")
    passes = ["in turn", "in turn", "forwards first", "one backward"]
    if strategy == "ddp, static graph" or once:
        passes = passes[:2]
    elif again == "reentrant" and zero:
        passes = passes[:2]  # a block's turn in one backward pass for several would be over
    ties = [] if once else ["", "block", "root"]
    chosen = random.choice(passes)
    layers = draw_layers(strategy, again, cast, chosen)
    parts = draw_parts(random, mixed or cast, again, [] if cast else ties, layers)
    order = tuple(range(len(parts))) if once else draw_order(random, len(parts))
    output = "tuple" if again == "reentrant" else random.choice(["tuple", "dict", "named"])
    optimizer = draw_optimizer(random, parts, mixed or cast)
    closure = OPTIMIZERS[optimizer].closure
    made = Draw(
        number,
        width=random.choice([1, 2, 3, 5, 8]),
        parts=parts,
        order=order,
        output=output,
        optimizer=optimizer,
        schedule=random.choice([*SCHEDULES]) if random.random() < 0.3 else "",
        groups=random.random() < 0.4 and not closure,
        param_dtype=random.choice(["bfloat16", "float16"]) if cast else "",
        reduce_dtype=draw_reduce_dtype(random, zero and mixed, cast),
        clip=None if mixed or cast else random.choice([None, 0.5]),
        passes=chosen,
        evaluate=random.random() < 0.3,
        segments=(Segment(strategy, 2, ()),),
    )
    others = [s for s in STRATEGIES if not s.startswith("ddp")] if zero else [strategy]
    if again == "reentrant" and zero and not once:
        others.remove("zero2")
    segments = []
    worlds = draw_ranks(random, strategy)
    for number, ranks in enumerate(worlds if zero or OPTIMIZERS[optimizer].resumes else worlds[:1]):
        ranks_fit = [s for s in others if s != "hsdp" or ranks != 3]
        one = random.choice(ranks_fit) if number else strategy
        segments.append(draw_segment(random, made, one, ranks))
    return replace(made, segments=tuple(segments))
