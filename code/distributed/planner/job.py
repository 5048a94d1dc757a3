"""A job on a cluster, and each strategy as an option for it: its bytes and its step.

Bytes are those of `memory` and `shapes`, time that of `schedules`, the speed of a GPU that of
`speed`. Every number may be replaced by one that you have measured.
"""

from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.model_states import RECIPES, Recipe
from distributed.planner.hardware import GPUS, Gpu
from distributed.planner.memory import held, kept_size
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, FUSED, PLAIN, PRESETS, Model
from distributed.planner.speed import RECOMPUTE, achieved, longer
from distributed.planner.streams import SimulatedStep, Work, simulate
from distributed.runtime.script import run_script

RECIPE = "bf16, Adam in fp32, fp32 master copy"  # the ZeRO paper's, and a `Job`'s default
# What the planner's command and form ask for by default: as the book trains in PyTorch
REDUCED_IN_FP32 = "bf16, fp32 master copy and gradients"
# What --recipe may be called, beside what it is called in full
SHORT = {
    "fp32-sgd": "fp32, SGD",
    "fp32-momentum": "fp32, SGD with momentum",
    "fp32": "fp32, Adam",
    "bf16-no-master": "bf16, Adam in fp32, no master copy",
    "bf16": RECIPE,
    "bf16-fp32-gradients": REDUCED_IN_FP32,
    "bf16-8bit": "bf16, 8-bit Adam, fp32 master copy",
}
assert {*SHORT.values()} == {*RECIPES}
WIRE = 0.8  # of what vendors state, what collectives of many MB reach
ALLOWANCE = 0.05  # of all the rest: what an allocator loses between pieces
CONTEXT = 1.5e9  # bytes that CUDA, NCCL and their kernels take on each GPU


class Job(NamedTuple):
    """What each rank does in a step: `accumulate` micro-batches of `rows` × `context` tokens."""

    model: Model
    rows: float = 1
    context: int = 2048
    accumulate: int = 1
    checkpoint: str = "auto"  # the least that fits, or one of CHECKPOINTS
    recipe: Recipe = RECIPES[RECIPE]
    fused_loss: bool = False
    compiled: bool = False  # each block, by torch.compile
    offload: bool = False  # ZeRO-3 keeps its shards in the host's memory, not on the GPU
    lora: int = 0  # rank of LoRA's adapters beside all matrices of the layers; the rest is frozen
    trainable: float = 1.0  # share of the parameters that is trained, the same in each layer

    @property
    def tokens(self) -> float:
        """Of a micro-batch of one rank."""
        return self.rows * self.context

    @property
    def scores(self) -> float:
        """Bytes for each word's score in the loss."""
        return FUSED if self.fused_loss else PLAIN

    @property
    def block(self) -> float:
        """Parameters of a layer with its adapters, if any."""
        return self.model.block + self.model.adapters(self.lora)

    @property
    def parameters(self) -> float:
        """Of the model with its adapters."""
        return self.model.root + self.model.layers * self.block

    @property
    def trained_block(self) -> float:
        """Parameters of a layer that have gradients."""
        return self.model.adapters(self.lora) if self.lora else self.trainable * self.model.block

    @property
    def trained_share(self) -> float:
        """Of what the model has without adapters."""
        return 0.0 if self.lora else self.trainable

    @property
    def trained_root(self) -> float:
        """Parameters of embeddings, last layer and last norm that have gradients."""
        return self.trained_share * self.model.root

    @property
    def trained(self) -> float:
        """Parameters with a gradient, and with states of the optimizer."""
        return self.trained_root + self.model.layers * self.trained_block

    @property
    def frozen(self) -> float:
        """Parameters without either: they stay in the dtype that computes."""
        return self.parameters - self.trained

    def flops(self) -> tuple[float, float]:
        """Operations for each token, forward and backward, without anything computed again.

        A frozen matrix passes a gradient on and has none of its own: 2 + 2 operations for each of
        its parameters, and not 2 + 4. Attention's own products have no parameters: nothing changes.
        """
        model = self.model
        all_trained = model.flops(self.context)
        frozen = (1 - self.trained_share) * (model.multiplied - model.idle)
        adapters = model.layers * model.adapters(self.lora, active=True)
        backward = all_trained * 2 / 3 - 2 * frozen + 4 * adapters
        return all_trained / 3 + 2 * adapters, backward


class Option(NamedTuple):
    """One strategy: bytes on each rank by what they are for, whether they fit, and its step."""

    name: str
    checkpoint: str
    memory: dict[str, float]
    fits: bool
    step: SimulatedStep
    job: Job  # with the rows and micro-batches that it is planned for

    @property
    def needs(self) -> float:
        return sum(self.memory.values())


def cluster_of(
    one: Gpu, gpus: int, per_host: int | None = None, network: float | None = None,
    speed: float = 0.0, share: float = WIRE,
) -> Cluster:  # fmt: skip
    """Links of a cluster of these GPUs; `network` is a host's, in bytes/s and one direction."""
    local = min(gpus, per_host or one.per_host)
    if network is None:
        network = local * one.network
    inside, between = Link(one.latency, share * one.inside), Link(10e-6, share * network)
    return Cluster(gpus, local, inside, between, speed)


def memory_of(
    job: Job, name: str, cluster: Cluster, checkpoint: str, stack: str = "pytorch"
) -> dict[str, float]:
    """Bytes of each rank at the peak of a step, by what they are for."""
    found = held(job, name, cluster, checkpoint, stack)
    found["allowance"] = ALLOWANCE * sum(found.values()) + CONTEXT
    return found


def work_of(job: Job, cluster: Cluster, checkpoint: str, updated: float | None = None) -> Work:
    """Embeddings first, then all layers; each computes in proportion to its active parameters.

    All parameters are gathered in the recipe's dtype, unless only those that a step has updated
    are: `updated` are the bytes of each of them.
    """
    model = job.model
    trained = [job.trained_root, *[job.trained_block] * model.layers]
    gathered = [job.recipe.parameters * n for n in (model.root, *[job.block] * model.layers)]
    if updated is not None:
        gathered = [updated * size for size in trained]
    idle = model.idle / max(1, model.layers)
    computed = [model.root, *[model.block - idle] * model.layers]
    seconds = longer(cluster.ranks, cluster.per_host) / cluster.speed  # per FLOP
    forward, backward = (each * job.tokens * seconds for each in job.flops())
    return Work(
        cluster,
        gathered,
        [job.recipe.gradients * size for size in trained],
        [size / model.active for size in computed],
        forward,
        backward + RECOMPUTE[checkpoint] * 3 * forward,
        job.accumulate,
    )


def option(job: Job, name: str, cluster: Cluster, memory: float, stack: str = "pytorch") -> Option:
    """A strategy with the least checkpointing that fits, or the one asked for."""
    wanted = CHECKPOINTS if job.checkpoint == "auto" else (job.checkpoint,)
    for checkpoint in wanted:
        needs = memory_of(job, name, cluster, checkpoint, stack)
        if sum(needs.values()) <= memory:
            break
    updated = None
    if name == "ZeRO-1" or (name == "ZeRO-2" and stack != "pytorch"):
        # PyTorch's optimizer in shards sends what it updated as it is kept: a master copy in fp32
        updated = kept_size(job.recipe) if stack == "pytorch" else job.recipe.parameters
    step = simulate(STACKS[stack][name], work_of(job, cluster, checkpoint, updated))
    return Option(name, checkpoint, needs, sum(needs.values()) <= memory, step, job)


def main(ranks: int = 64, rows: int = 4) -> None:
    """Llama 3 8B on hosts of eight H100s: what each strategy needs, and how long its step takes."""
    one, model = GPUS["h100"], PRESETS["llama-3-8b"]
    job = Job(model, rows)
    cluster = cluster_of(one, ranks, speed=achieved(one, model, job.tokens, job.compiled))
    for name in STACKS["pytorch"]:
        found = option(job, name, cluster, one.memory)
        said = "fits" if found.fits else "does not fit"
        print(f"{name:7}{found.needs / 1e9:7.1f} GB {said:13}{found.step.total:6.2f} s")
        assert found.fits == (found.needs <= one.memory)


if __name__ == "__main__":
    run_script(main)
