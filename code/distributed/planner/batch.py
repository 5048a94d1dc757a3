"""Division of a global batch into sequences per micro-batch, micro-batches per step, and ranks.

    tokens of a step = rows · context · micro-batches · ranks

Learning determines how many tokens a step should have, and memory how many rows a rank can take at
a time. The number of micro-batches follows. Fewer and larger ones are faster: ZeRO-2 and ZeRO-3
send everything once per micro-batch, and kernels with more tokens reach more of a GPU's peak. More
rows may still be slower if they fit only with more recomputation. So each checkpointing mode is
tried with the most rows that fit in memory, and the fastest mode is planned.
"""

from collections.abc import Callable
from typing import NamedTuple

from distributed.cost import Cluster
from distributed.planner.job import Job, Option, memory_of, option
from distributed.planner.shapes import CHECKPOINTS
from distributed.runtime.script import run_script


class Batch(NamedTuple):
    """Tokens per step over all ranks. If `rows` is None, it is chosen; `speed`, the cluster's."""

    tokens: float
    rows: float | None = None  # per micro-batch
    speed: Callable[[float], float] | None = None  # FLOP/s of a GPU, by tokens per micro-batch


def divisors(number: int) -> list[int]:
    """All divisors of `number`, from the largest to 1."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)


def shares(batch: Batch, context: int, ranks: int) -> list[tuple[float, int]]:
    """Rows and micro-batches that come nearest to the batch, from large micro-batches to small.

    Every pair gives a rank the same number of rows per step, at least one.
    """
    wanted = batch.tokens / (context * ranks)
    if batch.rows is not None:
        return [(batch.rows, max(1, round(wanted / batch.rows)))]
    whole = max(1, round(wanted))
    return [(rows, whole // rows) for rows in divisors(whole)]


def ways(
    job: Job, name: str, cluster: Cluster, memory: float, batch: Batch, stack: str = "pytorch"
) -> list[Option]:
    """The largest micro-batch that fits, for each checkpointing mode; empty if none does."""
    wanted = CHECKPOINTS if job.checkpoint == "auto" else (job.checkpoint,)
    found = []
    for checkpoint in wanted:
        for rows, micro_batches in shares(batch, job.context, cluster.ranks):
            this = job._replace(rows=rows, accumulate=micro_batches, checkpoint=checkpoint)
            if sum(memory_of(this, name, cluster, checkpoint, stack).values()) <= memory:
                found.append(option(this, name, at_speed(cluster, this, batch), memory, stack))
                break
    return found


def at_speed(cluster: Cluster, job: Job, batch: Batch) -> Cluster:
    return cluster._replace(speed=batch.speed(job.tokens)) if batch.speed else cluster


def shared_out(
    job: Job, name: str, cluster: Cluster, memory: float, batch: Batch, stack: str = "pytorch"
) -> Option:
    """The fastest option for this batch; if none fits, the one with the smallest micro-batches."""
    if fitting := ways(job, name, cluster, memory, batch, stack):
        return min(fitting, key=lambda each: each.step.total)
    rows, micro_batches = shares(batch, job.context, cluster.ranks)[-1]
    this = job._replace(rows=rows, accumulate=micro_batches)
    return option(this, name, at_speed(cluster, this, batch), memory, stack)


def why_so_many(
    best: Option, cluster: Cluster, memory: float, batch: Batch, stack: str = "pytorch"
) -> str:
    """Why a rank takes this many rows at a time, and what a larger micro-batch would need."""
    job = best.job
    rows, micro_batches = job.rows, job.accumulate
    said = f"{micro_batches:,} micro-batch{'es' * (micro_batches > 1)} of {in_sequences(rows)}"
    larger = [share for share in shares(batch, job.context, cluster.ranks) if share[0] > rows]
    if batch.rows is not None:
        return f"{said}, as you asked"
    if not larger:
        return f"{said}: the whole batch at once, so nothing is accumulated"
    next_rows, fewer = larger[-1]
    this = job._replace(rows=next_rows, accumulate=fewer)
    needs = sum(memory_of(this, best.name, cluster, best.checkpoint, stack).values())
    said += f": {in_sequences(next_rows)} at a time would need {needs / 1e9:.0f} GB"
    auto = job._replace(checkpoint="auto")
    for each in ways(auto, best.name, cluster, memory, batch, stack):
        if each.job.rows > rows:
            slower = each.step.total / best.step.total - 1
            fits = f"with {each.checkpoint} checkpointing {in_sequences(each.job.rows)} fit"
            said += f", and {fits}, but a step is {slower:.1%} longer"
            break
    return said


def in_sequences(rows: float) -> str:
    return f"{rows:g} sequence{'s' * (rows != 1)}"


def off_by(batch: Batch, job: Job, ranks: int) -> str:
    """A note with a step's actual tokens, if whole sequences miss the batch by more than 1%."""
    has = job.tokens * job.accumulate * ranks
    if abs(has / batch.tokens - 1) <= 0.01:
        return ""
    said = f"a step has {has:,.0f} tokens, not {batch.tokens:,.0f}: ranks take whole sequences"
    if has > 1.5 * batch.tokens:
        said += "; take fewer GPUs or shorter sequences, or split each (--sequences 0.5)"
    return said


def main(tokens: float = 2.0**22, ranks: int = 64) -> None:
    """Show what a rank takes of Llama 3 8B with rows of 8,192 tokens and 4 million per step."""
    from distributed.planner.hardware import GPUS
    from distributed.planner.job import cluster_of
    from distributed.planner.schedules import STACKS
    from distributed.planner.shapes import PRESETS
    from distributed.planner.speed import achieved

    one, model = GPUS["h100"], PRESETS["llama-3-8b"]
    batch = Batch(tokens, speed=lambda each: achieved(one, model, each, compiled=False))
    cluster = cluster_of(one, ranks)
    for name in STACKS["pytorch"]:
        best = shared_out(Job(model, context=8192), name, cluster, one.memory, batch)
        print(f"{name:7}{best.step.total:6.2f} s, {best.checkpoint:9}", end=" ")
        print(why_so_many(best, cluster, one.memory, batch) if best.fits else "does not fit")
        assert best.job.rows * best.job.accumulate * 8192 * ranks == tokens


if __name__ == "__main__":
    run_script(main)
