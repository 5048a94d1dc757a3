"""The next thing to try: the smallest change of a job with which it fits, each one computed.

    fused loss → recompute more → ZeRO-3 → fewer rows → offload → split a row → more GPUs

Cheap ones come first. The first that is enough alone is named; if none is, the smallest set that is
enough. ZeRO-3 is a measure for one GPU only, because with several it is always compared, and more
GPUs are the way out if nothing else is enough. Each is an argument of the planner, except
offloading: its memory is planned, but not the time that it takes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

from distributed.cost import Cluster
from distributed.model_states import RECIPES, Recipe
from distributed.planner.batch import Batch, divisors, in_sequences, shares
from distributed.planner.job import SHORT, Job, memory_of
from distributed.planner.memory import host_states
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS
from distributed.runtime.script import run_script

MOST_GPUS = 2**14
# Recipes that take less memory than others, and what they do without
LIGHT = {"bf16-8bit": "8-bit Adam", "bf16-no-master": "no master copy"}


class Setting(NamedTuple):
    """What a plan is made for, and may be changed."""

    job: Job
    cluster: Cluster
    batch: Batch | None = None
    stack: str = "pytorch"

    def with_rows(self, rows: float, accumulate: int) -> "Setting":
        job = self.job._replace(rows=rows, accumulate=accumulate)
        batch = self.batch and self.batch._replace(rows=rows)
        return self._replace(job=job, batch=batch)


class Measure(NamedTuple):
    """One change, in words and as arguments of the command line, and how to make it."""

    name: str
    arguments: tuple[str, ...]
    change: Callable[[Setting], Setting]


class Next(NamedTuple):
    """The measures to take together, and what the strategy then needs (bytes on each GPU).

    `before` are the bytes of the strategy that needed the least, and `host` those that each host
    needs in its own memory if states are offloaded.
    """

    measures: tuple[Measure, ...]
    strategy: str
    checkpoint: str
    needs: float
    before: float
    host: float = 0.0

    @property
    def arguments(self) -> list[str]:
        return [word for each in self.measures for word in each.arguments]

    def in_short(self) -> str:
        """A single measure with its arguments and the memory."""
        (one,) = self.measures
        return f"{one.name} ({' '.join(one.arguments)}, {self.needs / 1e9:.1f} GB)"

    def in_words(self) -> str:
        """A recommendation that can be read alone."""
        said = " and ".join(
            f"{each.name} ({' '.join(each.arguments)})" if each.arguments else each.name
            for each in self.measures
        )
        brings = "bring" if len(self.measures) > 1 else "brings"
        how = "" if self.checkpoint == "none" else f" with {self.checkpoint} checkpointing"
        said = (
            f"try {said}, which {brings} {self.before / 1e9:.1f} GB down to"
            f" {self.needs / 1e9:.1f} GB ({self.strategy}{how})"
        )
        if self.host:
            host = f"{self.host / 1e9:,.0f} GB of each host's memory"
            said += f"; offloading takes {host}, and the planner doesn't estimate its time"
        return said


def known(now: Setting) -> Iterator[list[Measure]]:
    """The measures that may still be taken, in their order; each from its mildest form on."""
    job, cluster = now.job, now.cluster
    if not job.fused_loss:
        yield [
            Measure(
                "a fused loss",
                ("--fused-loss",),
                lambda old: old._replace(job=old.job._replace(fused_loss=True)),
            )
        ]
    if job.checkpoint in ("none", "selective"):
        more = CHECKPOINTS[CHECKPOINTS.index(job.checkpoint) + 1 :]
        yield [recompute(checkpoint) for checkpoint in more]
    if cluster.ranks == 1:
        yield [over_gpus(ranks, "ZeRO-3 over") for ranks in (2, 4, 8)]
    if fewer := list(fewer_rows(now)):
        yield fewer
    if now.stack in ("pytorch", "deepspeed") and cluster.ranks > 1:
        yield [
            Measure(
                "ZeRO-3 with its states offloaded to the host",
                (),
                lambda old: old._replace(job=old.job._replace(offload=True)),
            )
        ]
    if cluster.ranks > 1:
        yield [split_row(over) for over in divisors(cluster.per_host)[::-1] if over > 1]


def recompute(checkpoint: str) -> Measure:
    return Measure(
        f"{checkpoint} checkpointing",
        ("--checkpoint", checkpoint),
        lambda old: old._replace(job=old.job._replace(checkpoint=checkpoint)),
    )


def fewer_rows(now: Setting) -> Iterator[Measure]:
    """Fewer rows at a time and more micro-batches, so that a step has the same tokens."""
    asked = now.batch.rows if now.batch else now.job.rows
    if asked is None or asked <= 1:
        return
    for rows in divisors(int(asked)):
        if rows == asked:
            continue
        accumulate = round(now.job.accumulate * asked / rows)
        words = ["--sequences", f"{rows:g}"]
        if now.batch is None:
            words += ["--accumulate", str(accumulate)]
        kept = 1 if now.batch else accumulate
        yield Measure(
            f"{in_sequences(rows)} at a time instead of {asked:g}",
            tuple(words),
            lambda old, rows=rows, kept=kept: old.with_rows(rows, kept),  # type: ignore[misc]
        )


def split_row(over: int) -> Measure:
    """Several ranks share a row, each with a part of its tokens: context parallelism."""
    return Measure(
        f"each sequence split over {over} GPUs",
        ("--sequences", f"{1 / over:g}"),
        lambda old: old.with_rows(1 / over, old.job.accumulate),
    )


def over_gpus(ranks: int, name: str = "ZeRO-3 over") -> Measure:
    def change(old: Setting) -> Setting:
        per_host = ranks if old.cluster.ranks == 1 else old.cluster.per_host
        return old._replace(cluster=old.cluster._replace(ranks=ranks, per_host=per_host))

    return Measure(f"{name} {ranks:,} GPUs", ("--gpus", str(ranks)), change)


def least(now: Setting, room: float) -> tuple[str, str, float]:
    """A strategy that fits into `room` with the least checkpointing, or that needs the least."""
    found = [fitting(now, name, room) for name in names(now)]
    return min(found, key=lambda each: (each[2] > room, CHECKPOINTS.index(each[1]), each[2]))


def names(now: Setting) -> list[str]:
    """Strategies that are there: offloading is ZeRO-3's, and one GPU has nothing to share."""
    cluster = now.cluster
    if cluster.ranks == 1:
        return ["DDP"]
    several = cluster.ranks > cluster.per_host > 1
    there = [name for name in STACKS[now.stack] if name != "HSDP" or several]
    return ["ZeRO-3"] if now.job.offload else there


def fitting(now: Setting, name: str, room: float) -> tuple[str, str, float]:
    job, cluster = now.job, now.cluster
    if now.batch is not None:
        rows, accumulate = shares(now.batch, job.context, cluster.ranks)[-1]
        job = job._replace(rows=rows, accumulate=accumulate)
    for checkpoint in CHECKPOINTS if job.checkpoint == "auto" else (job.checkpoint,):
        needs = sum(memory_of(job, name, cluster, checkpoint, now.stack).values())
        if needs <= room:
            break
    return name, checkpoint, needs


def next_to_try(now: Setting, room: float, before: float | None = None) -> Next | None:
    """The first measure with which a strategy needs at most `room` bytes of each GPU.

    `before` are the bytes that it is compared with: the least that any strategy needs, unless
    given. None if no set of measures is enough.
    """
    before = least(now, room)[2] if before is None else before
    ways = list(known(now))
    for count in range(1, len(ways) + 1):
        for chosen in combinations(ways, count):
            for taken in product(*chosen):
                if found := tried(now, taken, room, before):
                    return found
    ranks = 2 * now.cluster.ranks
    while ranks <= MOST_GPUS:
        if found := tried(now, (over_gpus(ranks),), room, before):
            return found
        ranks *= 2
    return None


def other_trainings(now: Setting, room: float, before: float) -> tuple[Next, ...]:
    """Changes of what is trained, or of its formats, each of which is enough alone.

    They aren't among the measures, because a model may learn less with them. Megatron has none.
    """
    job = now.job
    if now.stack not in ("pytorch", "deepspeed"):
        return ()
    ways = [
        Measure(name, ("--recipe", short), partial(with_recipe, RECIPES[SHORT[short]]))
        for short, name in LIGHT.items()
        if sum(RECIPES[SHORT[short]]) < sum(job.recipe)
    ]
    if not job.frozen:
        ways.append(Measure("LoRA adapters", ("--lora", "16"), with_adapters))
    found = (tried(now, (way,), room, before) for way in ways)
    return tuple(each for each in found if each)


def with_recipe(recipe: Recipe, old: Setting) -> Setting:
    return old._replace(job=old.job._replace(recipe=recipe))


def with_adapters(old: Setting) -> Setting:
    return old._replace(job=old.job._replace(lora=16))


def tried(now: Setting, taken: tuple[Measure, ...], room: float, before: float) -> Next | None:
    changed = now
    for each in taken:
        changed = each.change(changed)
    name, checkpoint, needs = least(changed, room)
    if needs > room:
        return None
    host = 0.0
    if changed.job.offload:
        cluster = changed.cluster
        of_a_rank = host_states(changed.job, cluster.ranks, changed.stack)
        host = of_a_rank * min(cluster.ranks, cluster.per_host)
    return Next(taken, name, checkpoint, needs, before, host)


def main() -> None:
    """What makes a long row, a large batch and a large model fit on eight H100s."""
    from distributed.planner.hardware import GPUS
    from distributed.planner.job import cluster_of
    from distributed.planner.models import MODELS

    one = GPUS["h100"]
    for name, rows, context in (
        ("qwen3-8b", 1.0, 32768),
        ("llama-3-8b", 16.0, 8192),
        ("llama-3-70b", 1.0, 4096),
    ):
        job = Job(MODELS[name], rows, context, fused_loss=name != "qwen3-8b")
        found = next_to_try(Setting(job, cluster_of(one, 8)), 0.9 * one.memory)
        assert found is not None
        assert found.needs <= 0.9 * one.memory < found.before
        print(f"{name}: {found.in_words()}")


if __name__ == "__main__":
    run_script(main)
