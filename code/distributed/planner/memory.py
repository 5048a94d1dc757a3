"""Peak memory of a rank in a step, in bytes, by the library that trains.

Megatron, DeepSpeed and this book keep what `model_states` lists, whole or in shards. PyTorch
doesn't:

    DDP        parameters and gradients in fp32; under autocast also casts of the weights
    FSDP2      one fp32 shard is both the parameter and the master copy; the gradient's shard has
               its dtype and exists only from its block's backward pass on: the peak is the largest
               of fifteen moments

`executed` runs PyTorch's recipes and counts; nothing here is fitted to its counts.
"""

from typing import TYPE_CHECKING, NamedTuple

from distributed.cost import Cluster
from distributed.model_states import Recipe, per_rank
from distributed.planner.shapes import IN_PLACE

if TYPE_CHECKING:
    from distributed.planner.job import Job

Held = dict[str, float]
STAGE = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "HSDP": 3, "ZeRO-3": 3}
SHARED = ("ZeRO-2", "HSDP", "ZeRO-3")  # the strategies that FSDP2 implements
# DeepSpeed, in elements: the settings that `copies` writes, and DeepSpeed's defaults for the rest.
REDUCE_BUCKET, GATHER_BUCKET, LIVE_PARAMETERS = 50e6, 500e6, 1e9
# What leaves the GPU if ZeRO-3 offloads: PyTorch's `CPUOffloadPolicy`, DeepSpeed's offloading
ON_THE_HOST = ("parameters", "gradients", "master copy", "optimizer states")


def is_autocast(recipe: Recipe) -> bool:
    """Whether PyTorch's DDP runs under autocast: it has no bf16 parameters with a master copy."""
    return recipe.master > 0 and recipe.parameters == 2


def kept_size(recipe: Recipe) -> float:
    """Bytes per parameter as PyTorch keeps it between steps: fp32 if there is a master copy."""
    return recipe.master or recipe.parameters


def states_size(recipe: Recipe) -> float:
    """Bytes of states per parameter: PyTorch's optimizers keep them in its dtype."""
    return min(recipe.states, 2 * kept_size(recipe))


def sharded_over(name: str, cluster: Cluster) -> int:
    """Number of ranks that share the states: HSDP shards inside a host, the others over all."""
    return min(cluster.ranks, cluster.per_host) if name == "HSDP" else cluster.ranks


def held(job: "Job", name: str, cluster: Cluster, checkpoint: str, stack: str = "pytorch") -> Held:
    """Bytes at the peak by purpose, without the allocator's overhead."""
    found = ledger(job, name, cluster, checkpoint, stack)
    found["activations"] += found.pop("logits")
    return found


def ledger(
    job: "Job", name: str, cluster: Cluster, checkpoint: str, stack: str = "pytorch"
) -> Held:
    """The same, with a separate line for the scores of all words and what their loss keeps."""
    if stack == "pytorch":
        way = fsdp2 if name in SHARED and sharded_over(name, cluster) > 1 else replicas
        return way(job, name, cluster, checkpoint)
    return as_listed(job, name, cluster, checkpoint, stack)


def as_listed(job: "Job", name: str, cluster: Cluster, checkpoint: str, stack: str) -> Held:
    """Memory of Megatron, DeepSpeed and this book, which have separate gradients all the time."""
    model, recipe, n = job.model, job.recipe, sharded_over(name, cluster)
    stage = STAGE[name]
    found = states_of(job, n, stage)
    scores = min(job.scores, IN_PLACE) if stack == "megatron" else job.scores
    found["activations"] = model.activations(
        job.tokens, checkpoint, recipe.parameters, 0, None, job.compiled
    )
    found["logits"] = job.tokens * scores * model.vocab_size
    if n == 1:
        return found
    if job.offload and stage == 3:
        found |= dict.fromkeys(ON_THE_HOST, 0.0)
    if stage == 3:
        found["gathered"] = (2 * job.block + model.root) * recipe.parameters
    if stage >= 2:
        found["buckets"] = max(job.trained_block, job.trained_root) * recipe.gradients
    if stack == "deepspeed" and stage:
        if not job.offload:
            found["gradients"] += 4 * job.trained / n  # an fp32 copy of the shard, at its step
        found["buckets"] = 2 * min(REDUCE_BUCKET, job.trained) * recipe.gradients
        live = min(LIVE_PARAMETERS, job.parameters)
        found["gathered"] = recipe.parameters * (
            live if stage == 3 else min(GATHER_BUCKET, job.trained)
        )
    return found


def states_of(job: "Job", n: int, stage: int) -> Held:
    """What `model_states` lists per trained parameter; for a frozen one, only the parameter."""
    found = per_rank(job.trained, n, stage, job.recipe)
    only = Recipe(job.recipe.parameters, 0, 0, 0)
    found["parameters"] += per_rank(job.frozen, n, stage, only)["parameters"]
    return found


def replicas(job: "Job", name: str, cluster: Cluster, checkpoint: str) -> Held:
    """DDP, with or without ZeroRedundancyOptimizer: the buckets hold the gradients, and stay."""
    model, recipe = job.model, job.recipe
    kept = kept_size(recipe)
    casts = is_autocast(recipe)
    n = cluster.ranks if name == "ZeRO-1" else 1
    # Autocast leaves residuals and norms in fp32, unless they begin at a frozen embedding in bf16
    stream = kept if casts and not job.frozen else None
    saved, layer, ends, scores = activations(job, checkpoint, recipe.parameters, stream)
    at_the_loss = model.layers * saved + ends, scores
    within = job.tokens * recipe.parameters * model.gradients_within
    of_the_last_layer = (model.layers - 1) * saved + layer + within + ends, 0.0
    kept_for_backward, logits = max(at_the_loss, of_the_last_layer, key=sum)
    found = {
        "parameters": kept * job.trained + recipe.parameters * job.frozen,
        "gradients": kept * job.trained,
        "master copy": 0.0,
        "optimizer states": states_size(recipe) * job.trained / n,
        "activations": kept_for_backward,
        "logits": logits,
    }
    if casts:
        adapters = model.layers * model.adapters(job.lora)
        found["casts"] = recipe.parameters * (job.trained_share * model.multiplied + adapters)
    return found


class Moment(NamedTuple):
    """Bytes at one moment of FSDP2's step, besides parameters and states, by purpose."""

    gradients: float
    activations: float
    logits: float
    gathered: float
    buckets: float


def fsdp2(job: "Job", name: str, cluster: Cluster, checkpoint: str) -> Held:
    """The largest of the moments: the loss, backward passes of four blocks, and the root's."""
    model, recipe, n = job.model, job.recipe, sharded_over(name, cluster)
    kept, size = kept_size(recipe), recipe.parameters
    on_gpu = 0.0 if job.offload else 1.0
    states = {
        "parameters": on_gpu * (kept * job.trained + size * job.frozen) / n,
        "gradients": 0.0,
        "master copy": 0.0,
        "optimizer states": on_gpu * states_size(recipe) * job.trained / n,
    }
    gradients = on_gpu * kept * job.trained / n
    over_hosts = name == "HSDP" and cluster.ranks > n
    # Shards of earlier micro-batches; over hosts, a sum in the reductions' dtype until it is sent
    before = gradients if job.accumulate > 1 and not over_hosts else 0.0
    unsent = recipe.gradients / n if job.accumulate > 1 and over_hosts else 0.0
    # Until the backward pass ends, HSDP keeps what it all-reduced, unless it is the shard itself
    casts = over_hosts and recipe.gradients != kept
    all_reduced = recipe.gradients / n if casts else 0.0
    stays = name == "ZeRO-2"  # parameters, from the first forward to the last backward pass

    saved, layer, ends, scores = activations(job, checkpoint, size)
    at_work = layer + job.tokens * size * model.gradients_within  # in a block's backward pass
    whole, root, block = size * job.parameters, size * model.root, size * job.block
    # What the block before sends; gradients of the last layer, of a block's last matrix, of all
    sends = recipe.gradients * job.trained_block
    of_head = size * model.vocab_size * model.d * job.trained_share
    of_down = size * model.down * job.trained_share
    of_block, of_root = size * job.trained_block, (recipe.gradients + size) * job.trained_root

    def micro_batch(before: float, is_first: bool, is_last: bool) -> list[Moment]:
        """Those of one: if parameters stay, the first gathers them, and the last frees them."""
        shards, kept_by_layers = before + unsent * job.trained, model.layers * saved + ends
        # The last block is copied out of its buffer, and that of the block before stays until then;
        # at the loss, one buffer is left
        arriving = root + block * min(3, 1 + model.layers)
        one = root + block
        if stays:
            arriving, one = whole + 2 * block * is_first, whole + block * is_first
        found = [
            Moment(shards, (model.layers - 1) * saved, 0.0, arriving, 0.0),
            Moment(shards, kept_by_layers, scores, one, 0.0),
        ]
        for done in {*range(min(2, model.layers)), *range(max(0, model.layers - 2), model.layers)}:
            # A block's backward pass after `done` others; the next one's parameters arrive
            there = root + block * min(2, model.layers - done)
            if stays:
                there = whole - done * block * is_last
            behind = done * job.trained_block
            shards = max(before, on_gpu * kept * behind / n) + unsent * (job.trained - behind)
            waiting = (model.layers - 1 - done) * saved
            others = all_reduced * behind + of_head
            before_it = others + (sends if done else 0.0)
            found.append(Moment(shards, waiting + at_work, 0.0, there, before_it + of_down))
            found.append(Moment(shards, waiting, 0.0, there, before_it + of_block))
            # It is freed, and then copied to be sent, when the block before it has been sent
            there -= 0.0 if stays and not is_last else block
            found.append(Moment(shards, waiting, 0.0, there, others + of_block + sends))
        there = root if is_last else whole
        others = sends + of_root + all_reduced * job.trained
        return [*found, Moment(gradients, 0.0, 0.0, there, others)]

    if stays and job.accumulate > 1:
        moments = micro_batch(0.0, is_first=True, is_last=False)
        moments += micro_batch(before, is_first=False, is_last=job.accumulate == 2)
    else:
        moments = micro_batch(before, is_first=True, is_last=True)
    return states | max(moments, key=sum)._asdict()


def host_states(job: "Job", ranks: int, stack: str = "pytorch") -> float:
    """Bytes that a rank of ZeRO-3 keeps in the host's memory if it offloads."""
    if stack == "pytorch":
        each = 2 * kept_size(job.recipe) + states_size(job.recipe)
        return (each * job.trained + job.recipe.parameters * job.frozen) / ranks
    return sum(states_of(job, ranks, 3).values()) + 4 * job.trained / ranks


def activations(
    job: "Job", checkpoint: str, size: float, stream: float | None = None
) -> tuple[float, float, float, float]:
    """Bytes that a layer saves, that it has in its backward pass, for both ends, for the scores."""
    one, none = job.model._replace(layers=1), job.model._replace(layers=0)
    compiled = job.compiled and checkpoint == "none"
    with_all = one.activations(job.tokens, "none", size, 0, stream, compiled)
    ends = none.activations(job.tokens, "none", size, 0, stream)
    layer = with_all - ends
    again = one.activations(job.tokens, checkpoint, size, 0, stream) - ends
    saved = layer if checkpoint == "none" else again - layer
    return saved, layer, ends, job.tokens * job.scores * job.model.vocab_size


def sent(job: "Job", name: str, cluster: Cluster) -> Held:
    """Bytes of the tensors that PyTorch passes to each collective in a step.

    A gather or a reduction of n bytes moves n (N − 1)/N through every rank, an all-reduce twice
    that.
    """
    count, recipe, micro = job.parameters, job.recipe, job.accumulate
    if name not in SHARED:
        found = {"all-reduce": recipe.gradients * job.trained}
        if name == "ZeRO-1":
            found["broadcast"] = kept_size(recipe) * job.trained
        return found
    again = 0.0 if name == "ZeRO-2" else count - job.model.root  # the root stays
    found = {
        "all-gather": (1 if name == "ZeRO-2" else micro) * recipe.parameters * (count + again),
        "reduce-scatter": micro * recipe.gradients * job.trained,
    }
    if name == "HSDP":
        found["all-reduce"] = recipe.gradients * job.trained / sharded_over(name, cluster)
    return found
