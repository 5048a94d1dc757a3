"""Cautions of a plan that goes beyond the published runs that planned times were compared with.

Each of them is about one input: GPUs, links, tokens, a model, what is trained, a strategy or a
library. If nothing like it was ever published, the band of the planned time means nothing, and the
plan has none.

Attention is counted in full, as published MFUs count it, though a causal mask hides half of it. The
curve of speeds was fitted to runs counted like this, up to 8,192 tokens in a sequence, and the runs
with 16,384 to 65,536 tokens take at least that long, too: see `test_plan_beyond`.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from distributed.planner.assumed import WHOSE, Assumed
from distributed.planner.band import known, long_runs
from distributed.planner.hardware import GPUS
from distributed.planner.job import WIRE, Job, Option
from distributed.planner.published import longest, rows
from distributed.planner.speed import curve_name, has_curve
from distributed.planner.validation import MODELS, RAN, in_percent, spread
from distributed.runtime.script import run_script

NO_BAND = "none, because the plan goes beyond what was measured (see the cautions)"
SLACK = 1.05  # a model, or a link, that differs by less is like a published one
LARGE_SHARE = 0.1  # of the parameters: LoRA's adapters are meant to be far fewer


class Beyond(NamedTuple):
    """One respect in which a plan was compared with nothing, in words."""

    said: str
    has_band: bool = True  # whether the band of the planned time still means something


class Reach(NamedTuple):
    """What the published speeds on one generation of GPUs reach."""

    gpus: int  # the most
    parameters: tuple[float, float]  # of the smallest and of the largest model
    inside: float  # bytes/s of the slowest links inside a host, by data sheet
    network: float  # bytes/s of the slowest host among several


@cache
def speeds() -> tuple[dict[str, str], ...]:
    return tuple(rows("tokens/s/GPU"))


@cache
def reach(curve: str) -> Reach:
    """The extremes of all published speeds on GPUs of this generation."""
    mine = [
        row
        for row in speeds()
        if has_curve(GPUS[row["gpu"]]) and curve_name(GPUS[row["gpu"]]) == curve
    ]
    sizes = [MODELS[row["model"]].parameters for row in mine]
    several = [row for row in mine if int(row["gpus"]) > int(row["per_host"])]
    return Reach(
        max(int(row["gpus"]) for row in mine),
        (min(sizes), max(sizes)),
        min(GPUS[row["gpu"]].inside for row in mine),
        1e9 * min(float(row["network"]) for row in several),
    )


@cache
def largest() -> int:
    """Most tokens in a step of a published speed."""
    sizes = ("gpus", "rows", "context", "accumulate")
    steps = []
    for row in speeds():
        gpus, sequences, context, micro_batches = (int(row[name]) for name in sizes)
        steps.append(gpus * sequences * context * micro_batches)
    return max(steps)


@cache
def strategies(curve: str) -> frozenset[str]:
    """Strategies of published speeds on GPUs of this generation."""
    return frozenset(row["strategy"] for row in speeds() if curve_name(GPUS[row["gpu"]]) == curve)


def beyond(found: Assumed, best: Option | None = None) -> list[Beyond]:
    """All respects in which a plan goes beyond what was measured; `best` is recommended."""
    job = best.job if best else found.job
    parts = [
        of_gpus(found),
        of_links(found),
        of_formats(found),
        of_tokens(found, job),
        of_model(found),
        of_trained(job),
        of_library(found, best),
    ]
    return [each for part in parts for each in part]


def of_gpus(found: Assumed) -> Iterator[Beyond]:
    """More GPUs than any run had, or GPUs without a curve."""
    one, curve, ranks = found.gpu, curve_name(found.gpu), found.cluster.ranks
    if found.speed is None and not has_curve(one):
        errors = [run.error for run in known() if not has_curve(GPUS[run.row["gpu"]])]
        yield Beyond(
            f"no curve was fitted to runs on the {one.name}: planned with the share of the peak"
            f" that the {GPUS[curve].name} reaches, and {len(errors)} runs on GPUs without a curve"
            f" {spread(errors)}; measure a step, and pass its speed (--speed)"
        )
    if ranks > (most := reach(curve).gpus):
        yield Beyond(
            f"{ranks:,} GPUs are {ranks / most:,.1f} times the {most:,} GPUs of the largest"
            f" published run on {curve.upper()}s: the cost of messages and of slow hosts is"
            " extrapolated",
            has_band=False,
        )


def of_links(found: Assumed) -> Iterator[Beyond]:
    """Links that are slower than those of all runs, or that may be slower than planned."""
    cluster, one = found.cluster, found.gpu
    curve, slowest = curve_name(one), reach(curve_name(one))
    is_shared = min(cluster.ranks, cluster.per_host) > 1
    is_slower = SLACK * found.inside.link.bandwidth < WIRE * slowest.inside
    if is_shared and not one.peer_to_peer and not found.inside.is_measured:
        yield Beyond(
            f"the {one.name} has no peer-to-peer transfers over PCIe, so its links may be much"
            " slower than planned, because messages go through the host's memory; measure them"
            " with check_cluster.py, and pass the rate, such as --interconnect 10GB",
            has_band=not is_slower,
        )
    elif is_shared and is_slower:
        yield Beyond(
            f"links inside a host are slower than the {slowest.inside / 1e9:g} GB/s of all"
            f" published runs on {curve.upper()}s: a step may wait longer than planned",
            has_band=False,
        )
    if cluster.ranks > cluster.per_host and SLACK * cluster.network.bandwidth < (
        WIRE * slowest.network
    ):
        yield Beyond(
            f"the network between hosts is slower than the {slowest.network / 1e9:g} GB/s per host"
            f" of all published runs on {curve.upper()}s: a step may wait longer than planned",
            has_band=False,
        )


def of_formats(found: Assumed) -> Iterator[Beyond]:
    """Matrix products in 32 bits."""
    name = found.products_in
    if name in ("fp32", "TF32") and found.speed is None:
        yield Beyond(
            f"products in {name}: no published run was in fp32, so the speed is the share of the"
            " peak that runs in 16 bits reached",
            has_band=False,
        )


def of_tokens(found: Assumed, job: Job) -> Iterator[Beyond]:
    """Sequences that are long, too long for the model, or split; and large steps."""
    curve, learned = curve_name(found.gpu), job.model.positions
    if learned and job.context > learned:
        yield Beyond(
            f"the model has {learned:,} learned positions, fewer than the {job.context:,} tokens"
            " of a sequence; give --context, or change the model",
            has_band=False,
        )
    if job.context > longest(long=True):
        attention = 1 - job.model.flops(0) / job.model.flops(job.context)
        yield Beyond(
            f"no published run had more than {longest(long=True):,} tokens in a sequence;"
            f" attention is counted in full and is {attention:.0%} of the operations: a kernel"
            " that skips what a causal mask hides may take half of that time",
            has_band=False,
        )
    elif job.context > longest(long=False) and found.speed is None:
        errors = [run.error for run in long_runs(curve)]
        yield Beyond(
            f"sequences of {job.context:,} tokens: attention is counted in full, as published MFUs"
            f" count it; {len(errors)} runs on {curve.upper()}s with more than"
            f" {longest(long=False):,} tokens {spread(errors)}"
        )
    if job.rows < 1:
        yield Beyond(
            f"each sequence is split over {round(1 / job.rows)} GPUs (context parallelism): its own"
            " messages aren't planned, and the calls don't split it",
            has_band=False,
        )
    step = found.cluster.ranks * job.accumulate * job.tokens
    if step > largest():
        yield Beyond(
            f"a step has {step:,.0f} tokens, {step / largest():,.1f} times the {largest():,} of the"
            " largest published step: with so many, a model may learn less from each token"
        )


def of_model(found: Assumed) -> Iterator[Beyond]:
    """Sizes and kinds of models that no run had."""
    model, curve = found.job.model, curve_name(found.gpu)
    smallest, most = reach(curve).parameters
    for is_beyond, name, size in (
        (model.parameters > SLACK * most, "largest", most),
        (SLACK * model.parameters < smallest, "smallest", smallest),
    ):
        if is_beyond:
            yield Beyond(
                f"the {name} model of a published speed on {curve.upper()}s has"
                f" {size / 1e9:,.3g} billion parameters, and yours {model.parameters / 1e9:,.3g}",
                has_band=False,
            )
    if model.experts:
        mixtures = [run for run in known() if run.option.job.model.experts]
        seen = ", ".join(f"{run.row['model']}, planned {in_percent(run.error)}" for run in mixtures)
        count = f"{len(mixtures)} published run{'s' * (len(mixtures) != 1)}"
        yield Beyond(
            f"a mixture of experts: compared with only {count} of such models ({seen})",
            has_band=False,
        )
    if model.latent:
        yield Beyond("latent attention: no published run had it", has_band=False)
    if model.local:
        yield Beyond("sliding windows: no published run had sliding windows")


def of_trained(job: Job) -> Iterator[Beyond]:
    """Frozen parameters, whose time was compared with nothing."""
    if job.lora:
        yield Beyond(
            "no published run trained LoRA's adapters, so their time is unvalidated",
            has_band=False,
        )
    elif job.frozen:
        yield Beyond(
            "no published run had frozen parameters, so their time is unvalidated",
            has_band=False,
        )
    share = job.trained / job.parameters
    if job.lora and share > LARGE_SHARE:
        yield Beyond(
            f"LoRA of rank {job.lora:,} trains {job.trained / 1e9:,.3g} billion parameters, which"
            f" is {100 * share:.0f}% of all; usual ranks are 8 to 256"
        )


def of_library(found: Assumed, best: Option | None) -> Iterator[Beyond]:
    """A library, or a strategy on these GPUs, without any run."""
    if found.stack not in ("pytorch", *RAN.values()):
        yield Beyond(
            f"no published run used {WHOSE[found.stack]}, so its time is unvalidated",
            has_band=False,
        )
    elif best is not None and best.name not in strategies(curve_name(found.gpu)):
        yield Beyond(
            f"no published run of {best.name} on {curve_name(found.gpu).upper()}s, so its time was"
            " compared with those of other strategies"
        )


def main() -> None:
    """Cautions for Llama 3 8B with adapters on eight RTX 4090s, and on 100,000 H100s."""
    from distributed.planner.job import cluster_of
    from distributed.planner.speed import achieved

    for name, ranks, lora in (("4090", 8, 16), ("h100", 100_000, 0)):
        one, job = GPUS[name], Job(MODELS["llama-3-8b"], context=4096, lora=lora)
        cluster = cluster_of(one, ranks, 8, speed=achieved(one, job.model, job.tokens, False))
        print(f"{ranks:,} × {one.name}")
        for each in (found := beyond(Assumed(job, cluster, one.memory, one))):
            print(f"- {each.said}")
        assert not all(each.has_band for each in found)


if __name__ == "__main__":
    run_script(main)
