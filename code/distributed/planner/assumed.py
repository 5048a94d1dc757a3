"""Assumptions of a plan: the model, the step, the GPUs and their speed, printed before the results.

If you see that 46.7 billion parameters were planned, or that no run on this GPU was ever compared,
you know how far to trust the rest of the answer.
"""

from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.model_states import RECIPES
from distributed.planner.hardware import GIB, GPUS, Gpu
from distributed.planner.job import WIRE, Job
from distributed.planner.links import Inside, usual
from distributed.planner.shapes import Model
from distributed.planner.speed import (
    curve_name,
    has_curve,
    is_fitted,
    longer,
    peak_of,
    products_in,
)
from distributed.runtime.script import run_script

WHOSE = {
    "pytorch": "PyTorch",
    "megatron": "Megatron",
    "deepspeed": "DeepSpeed",
    "book": "this book's code",
}


class Assumed(NamedTuple):
    """A job on a cluster of these GPUs; `speed` is the one that the user gave, or None."""

    job: Job
    cluster: Cluster
    memory: float
    gpu: Gpu
    name: str = ""  # of the model, as the user gave it
    stack: str = "pytorch"
    speed: float | None = None
    links: Inside | None = None  # inside a host; None: the usual ones of the GPU
    tf32: bool = False  # whether products of fp32 numbers are rounded to TF32

    @property
    def products_in(self) -> str:
        """The number format of matrix products."""
        return products_in(self.gpu, self.job.recipe, self.tf32)

    @property
    def peak(self) -> float:
        """FLOP/s on the data sheet in that format."""
        return peak_of(self.gpu, self.job.recipe, self.tf32)

    @property
    def inside(self) -> Inside:
        """Links inside a host: their stated rate, and the share of it that is planned with."""
        return self.links or usual(self.gpu)

    @property
    def is_measured(self) -> bool:
        """Whether the speed was measured on this kind of GPU."""
        return self.speed is not None or has_curve(self.gpu)

    @property
    def wait_for_stragglers(self) -> float:
        """How much longer computation takes than on one host, as a share."""
        return longer(self.cluster.ranks, self.cluster.per_host) - 1


def as_dict(found: Assumed) -> dict[str, Any]:
    """For programs: counts, bytes, bytes/s of line rates, and FLOP/s."""
    job, cluster, model = found.job, found.cluster, found.job.model
    return {
        "model": found.name,
        "parameters": model.parameters,
        "active_parameters": model.active,
        "layers": model.layers,
        "width": model.d,
        "network": model.ffn,
        "gated": model.gated,
        "experts": model.experts._asdict() if model.experts else None,
        "vocab_size": model.vocab_size,
        "tied": model.tied,
        "positions": model.positions,
        "heads": model.heads,
        "kv_heads": model.kv,
        "head_dim": head_dim(model),
        "latent": model.latent._asdict() if model.latent else None,
        "window": model.window or None,
        "local_layers": round(model.local * model.layers),
        "context": job.context,
        "recipe": recipe_name(job),
        "stack": found.stack,
        "compiled": job.compiled,
        "lora_rank": job.lora or None,
        "trained_parameters": job.trained,
        "frozen_parameters": job.frozen,
        "flops_per_token": sum(job.flops()),
        "gpu": found.gpu.name,
        "gpus": cluster.ranks,
        "per_host": cluster.per_host,
        "gpu_memory": found.memory,
        "inside_bandwidth": found.inside.rate,
        "link_share": found.inside.share,
        "host_bandwidth": cluster.network.bandwidth / WIRE,
        "network_share": WIRE,
        "speed": cluster.speed,
        "peak": found.peak or None,
        "products_in": found.products_in,
        "measured_curve": found.is_measured,
        "wait_for_stragglers": found.wait_for_stragglers,
    }


def head_dim(model: Model) -> int:
    if model.latent:
        return model.latent.plain + model.latent.rotated
    return model.head_dim or round(model.d / model.heads)


def recipe_name(job: Job) -> str:
    """The recipe's name for --recipe; its bytes if it has no name."""
    return next((name for name, each in RECIPES.items() if each == job.recipe), str(job.recipe))


def in_words(found: Assumed) -> list[tuple[str, str]]:
    """For people: the assumptions, topic by topic."""
    trained = [("trained", of_trained(found.job))] if found.job.frozen else []
    links = [("links", of_links(found))] if found.cluster.ranks > 1 else []
    return [
        ("model", of_model(found.job.model, found.name)),
        ("attention", of_attention(found.job.model)),
        *trained,
        ("step", of_step(found)),
        ("GPUs", of_gpus(found)),
        *links,
        ("speed", of_speed(found)),
    ]


def in_brief(found: Assumed) -> list[tuple[str, str]]:
    """The few lines that an answer begins with: what is trained, how, and on what."""
    job, cluster, model = found.job, found.cluster, found.job.model
    what = f"{found.name}, " if found.name else ""
    what += f"{billions(model.parameters)} parameters"
    what += f" ({billions(model.active)} active)" if model.experts else ""
    what += f", {100 * job.trained / job.parameters:.2g}% of them trained" if job.frozen else ""
    is_in_one = cluster.ranks <= cluster.per_host
    room = f"{found.memory / GIB:.1f} GiB = {found.memory / 1e9:.1f} GB each"
    gpus = [f"{cluster.ranks:,} × {found.gpu.name} ({room})"]
    gpus += ["in one host" if is_in_one else f"{cluster.per_host} per host"]
    links = []
    if min(cluster.ranks, cluster.per_host) > 1:
        links.append(f"{found.inside.rate / 1e9:,.4g} GB/s for each GPU inside a host")
    if not is_in_one:
        links.append(
            f"{cluster.network.bandwidth / WIRE / 1e9:,.4g} GB/s for each host (--network)"
        )
    speed = f"{cluster.speed / 1e12:,.3g} TFLOP/s for each GPU"
    speed += "" if found.is_measured else " (not measured)"
    topics = {
        "model": what,
        "step": of_step(found).removesuffix(", eager"),
        "GPUs": ", ".join(gpus),
        "links": ", ".join(links),
        "speed": speed,
    }
    return [(name, said) for name, said in topics.items() if said]


def of_model(model: Model, name: str = "") -> str:
    """Parameters, layers, network, vocabulary."""
    active = f"{billions(model.active)} active" if model.experts else "all active"
    said = f"{name}: " if name else ""
    said += f"{billions(model.parameters)} parameters, {active}"
    said += f"; {model.layers} layers of width {model.d:,}"
    plain = f"MLP width {model.ffn:,}{' (gated)' if model.gated else ''}"
    if model.experts is None:
        said += f"; {plain}"
    else:
        routed, active_experts, ffn, shared, dense = model.experts
        said += f"; {active_experts} of {routed} experts per token, MLP width {ffn:,}"
        said += f", and a shared {shared:,}" if shared else ""
        said += f"; {round(dense * model.layers)} layers with {plain}" if dense else ""
    tied = "tied to the head" if model.tied else "not tied to the head"
    return f"{said}; vocabulary of {model.vocab_size:,}, {tied}"


def billions(count: float) -> str:
    return f"{count / 1e9:,.2f} billion" if count >= 1e9 else f"{count / 1e6:,.0f} million"


def of_attention(model: Model) -> str:
    """Heads, their width, and how far they attend."""
    said = f"{model.heads} heads of {head_dim(model)}"
    if model.latent:
        said += f", keys and values from {model.latent.kv_rank} numbers (latent attention)"
    else:
        said += f", {model.kv} KV heads" if model.kv != model.heads else ""
    if not model.window:
        return f"{said}; full attention"
    local = round(model.local * model.layers)
    return f"{said}; {local} of {model.layers} layers have a window of {model.window:,} tokens"


def of_trained(job: Job) -> str:
    """Which parameters have gradients, and what the others are assumed to cost."""
    said = f"{billions(job.trained)} parameters, {100 * job.trained / job.parameters:.2g}%"
    if job.lora:
        said += f": LoRA of rank {job.lora} beside every matrix of the layers"
    else:
        said += " of each layer and of the embeddings"
    return (
        f"{said}; the rest is frozen: {job.recipe.parameters:g} bytes for each, no gradient and no"
        " states; activations as if all were trained"
    )


def of_step(found: Assumed) -> str:
    """Context, recipe, and which library's code."""
    job = found.job
    how = "compiled" if job.compiled else "eager"
    recipe = recipe_name(job)
    if found.products_in == "fp16":
        recipe = recipe.replace("bf16", "fp16")
        recipe += " with loss scaling, because this GPU has no bf16"
    return f"sequences of {job.context:,} tokens; {recipe}; {WHOSE[found.stack]}, {how}"


def of_gpus(found: Assumed) -> str:
    """Number and kind of GPUs, the memory that a program sees, and how many share a host."""
    cluster = found.cluster
    memory = f"{found.memory / GIB:.1f} GiB ({found.memory / 1e9:.1f} GB) usable"
    said = f"{cluster.ranks:,} × {found.gpu.name}, {memory}"
    if cluster.ranks <= cluster.per_host:
        return f"{said}; in one host"
    return f"{said}; {cluster.per_host} per host"


def of_links(found: Assumed) -> str:
    """Bandwidth inside a host and between hosts, and what share of it is planned with."""
    cluster = found.cluster
    said = [found.inside.in_words()] if min(cluster.ranks, cluster.per_host) > 1 else []
    if cluster.ranks > cluster.per_host:
        ports = cluster.network.bandwidth / WIRE / 1e9
        rate = f"{ports:,.4g} GB/s per host between hosts (all its ports, one way)"
        said.append(f"{rate}, planned with {100 * WIRE:g}% of that")
    return "; ".join(said)


def of_speed(found: Assumed) -> str:
    """FLOP/s of a GPU, whether it was measured, and what is lost on several hosts."""
    said = of_one_gpu(found)
    if found.cluster.ranks <= found.cluster.per_host:
        return said
    wait = found.wait_for_stragglers
    return f"{said}; waiting for the slowest of all hosts makes it {wait:.1%} slower"


def of_one_gpu(found: Assumed) -> str:
    """FLOP/s of a GPU on one host, and whether it was measured."""
    digits = ",.3g" if found.peak < 999.5e12 else ",.0f"
    of_peak = f" of {found.peak / 1e12:{digits}}" if found.peak else ""
    said = f"{found.cluster.speed / 1e12:{digits}}{of_peak} TFLOP/s"
    said += f" in {found.products_in}" if found.products_in in ("fp32", "TF32") else ""
    if found.speed is not None:
        return f"{said}, as --speed says"
    if found.products_in in ("fp32", "TF32"):
        return f"{said}: the share of the peak that published runs in 16 bits reached"
    if found.is_measured:
        how = "compiled" if found.job.compiled else "eager"
        where = "this GPU"
        if not is_fitted(found.gpu):
            where = f"{curve_name(found.gpu).upper()}s, which compute as fast"
        return f"{said}, by a curve fitted to published runs on {where}, for {how} blocks"
    curve = GPUS[curve_name(found.gpu)].name
    return f"{said}: no measured curve, but that of the {curve}; it may be much slower"


def main() -> None:
    """Print the assumptions for Mixtral on sixteen hosts of MI300X."""
    from distributed.planner.job import cluster_of
    from distributed.planner.models import MODELS
    from distributed.planner.speed import achieved

    model, one = MODELS["mixtral-8x7b"], GPUS["mi300x"]
    job = Job(model, context=4096)
    cluster = cluster_of(one, 128, speed=achieved(one, model, job.tokens, job.compiled))
    found = Assumed(job, cluster, one.memory, one, "mixtral-8x7b")
    for name, said in in_words(found):
        print(f"{name:10}{said}")
    assert not found.is_measured


if __name__ == "__main__":
    run_script(main)
