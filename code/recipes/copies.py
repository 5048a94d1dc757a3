"""Exports of a plan: a command line, PyTorch code, DeepSpeed's settings, a torchrun line.

If a library can't do something as planned, its export says so.
"""

import json
import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

from distributed.cost import Cluster
from distributed.planner.job import Job, Option
from distributed.planner.memory import SHARED, is_autocast

# Selective checkpointing as the plan counts it: attention's result and every second product stay.
SELECTIVE = """\
ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}  # without, with a bias


def keep_half():
    \"""Attention's result and every second matrix product are kept.\"""
    products = {False: 0, True: 0}  # forward, and again

    def policy(context, operation, *args, **kwargs):
        keep = operation in ATTENTION
        if operation in PRODUCTS:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


"""
WRAPPER = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
)
POLICIES = [
    "from torch.utils.checkpoint import (",
    "    CheckpointPolicy,",
    "    create_selective_checkpoint_contexts,",
    ")",
]
COMPRESS = (
    "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook"
)
COMPILED = """\
    for layer in model.LAYERS:  # each for itself: blocks are alike, and one is compiled
        layer.compile()
"""
EIGHT_BITS = "from torchao.optim import AdamW8bit  # PyTorch has none: pip install torchao"


class OptimizerLine(NamedTuple):
    """A class and its arguments, as Python has them and as DeepSpeed's file has them."""

    name: str
    arguments: str
    settings: dict[str, Any] | None  # None: the file cannot name it


# By the bytes of states per parameter. Adam's usual kernels copy a state in the step, but the fused
# one doesn't; fused SGD doesn't support shards.
OPTIMIZERS = {
    0: OptimizerLine("torch.optim.SGD", "lr=0.1", {"type": "SGD", "params": {"lr": 0.1}}),
    2: OptimizerLine("AdamW8bit", "lr=1e-4", None),
    4: OptimizerLine(
        "torch.optim.SGD", "lr=0.1, momentum=0.9",
        {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    ),
    8: OptimizerLine(
        "torch.optim.AdamW", "lr=1e-4, fused=True",
        # By default DeepSpeed's kernel has no weight decay, and PyTorch's has 0.01
        {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    ),
}  # fmt: skip


def command_line(words: list[str]) -> str:
    return shlex.join(["python", "-m", "distributed.planner", *words])


def optimizer_of(job: Job) -> OptimizerLine:
    return OPTIMIZERS[round(job.recipe.states)]


def torch_code(best: Option, job: Job, cluster: Cluster, layers: str = "layers") -> str:
    """Code of two functions: one sets a model up for this plan, the other trains one step.

    The model has its blocks in `layers`, takes a micro-batch, and returns its loss.
    """
    imports = {"import os", "import torch"}
    if best.checkpoint != "none":
        imports.add(WRAPPER)
    if round(job.recipe.states) == 2:
        imports.add(EIGHT_BITS)
    of_strategy, lines, step = fsdp(best, job, cluster) if best.name in SHARED else ddp(best, job)
    lines = lines.replace("model.LAYERS", f"model.{layers}")
    wrapped = checkpointed(best) + (COMPILED if job.compiled else "")
    wrapped = wrapped.replace("model.LAYERS", f"model.{layers}")
    makes = (
        'def parallelize(make_model, device="cuda"):\n'
        '    if device == "cuda":\n'
        '        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
    )
    helper = SELECTIVE if best.checkpoint == "selective" else ""
    several = POLICIES if helper else []
    head = in_order(imports | of_strategy, several)
    body = makes + lines.replace("    WRAPPED\n", wrapped)
    gap = "\n" if helper else "\n\n"
    return f"{head}\n{gap}{helper}{body}    return model, optimizer\n\n\n{step}"


def in_order(imports: Iterable[str], several: list[str]) -> str:
    """Import lines in the usual order: the standard library first, `import` before `from`."""
    plain_first = sorted(imports, key=lambda line: (not line.startswith("import"), line))
    own = [line for line in plain_first if "torch" not in line]
    of_torch = [line for line in plain_first if "torch" in line and line != EIGHT_BITS]
    of_others = [line for line in plain_first if line == EIGHT_BITS]
    return "\n".join([*own, "", *of_torch, *several, *of_others])


def checkpointed(best: Option) -> str:
    """Lines that wrap each block; none if nothing is recomputed."""
    if best.checkpoint == "none":
        return ""
    context = ", context_fn=keep_half" if best.checkpoint == "selective" else ""
    return (
        "    for i, layer in enumerate(model.LAYERS):\n"
        f"        model.LAYERS[i] = checkpoint_wrapper(layer{context})\n"
    )


def ddp(best: Option, job: Job) -> tuple[set[str], str, str]:
    """Imports, lines and a step of DDP, with or without a sharded optimizer."""
    imports = {
        "from contextlib import nullcontext",
        "from torch.nn.parallel import DistributedDataParallel",
    }
    name, arguments, _ = optimizer_of(job)
    note = ""
    autocasts = is_autocast(job.recipe)
    if autocasts:
        note = (
            "    # Parameters and gradients in fp32, and casts while it computes: Megatron and\n"
            "    # DeepSpeed have parameters in bf16 beside a master copy that can be in shards.\n"
        )
    half = ", dtype=torch.bfloat16" if job.recipe.parameters == 2 and not autocasts else ""
    if half:
        note = AVERAGES
    lines = f"{JOINED}{note}    model = make_model().to(device{half})\n    WRAPPED\n"
    lines += "    model = DistributedDataParallel(model, gradient_as_bucket_view=True)\n"
    if autocasts and job.recipe.gradients == 2:
        imports.add(COMPRESS)
        lines += "    model.register_comm_hook(None, bf16_compress_hook)\n"
    if best.name == "ZeRO-1":
        imports.add("from torch.distributed.optim import ZeroRedundancyOptimizer")
        lines += (
            "    # It broadcasts after the step; Megatron's gathers beside the next forward pass.\n"
            "    parameters = model.parameters()\n"
            f"    optimizer = ZeroRedundancyOptimizer(parameters, {name}, {arguments})\n"
        )
    else:
        lines += f"    optimizer = {name}(model.parameters(), {arguments})\n"
    computes = "            loss = model(*batch) / len(micro_batches)\n"
    if autocasts:
        computes = (
            "            with torch.autocast(device, torch.bfloat16):\n"
            "                loss = model(*batch) / len(micro_batches)\n"
        )
    step = (
        'def train_step(model, optimizer, micro_batches, device="cuda"):\n'
        "    for number, batch in enumerate(micro_batches, start=1):\n"
        "        is_last = number == len(micro_batches)\n"
        "        with nullcontext() if is_last else model.no_sync():\n"
        f"{computes}"
        "            loss.backward()\n"
        f"{UPDATE}"
    )
    return imports, lines, step


JOINED = """\
    if not torch.distributed.is_initialized():  # where there is a mesh, that does it
        torch.distributed.init_process_group()
"""
AVERAGES = """\
    # PyTorch's optimizers keep averages in the parameters' dtype: in bf16, fewer bytes than
    # the plan counts.
"""
UPDATE = """\
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
MADE = """\
    with torch.device("meta"):  # no host has room for the whole on every rank
        model = make_model()
"""
BEGIN = """\
    model.to_empty(device=device)
    # This initializes PyTorch's modules from scratch: initialize your own ones, and their
    # buffers, yourself. To start from a checkpoint, see finetune.py.
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
"""


def fsdp(best: Option, job: Job, cluster: Cluster) -> tuple[set[str], str, str]:
    """Imports, lines and a step of FSDP2: ZeRO-2, ZeRO-3, HSDP."""
    recipe = job.recipe
    keeps_fp32 = recipe.parameters == 4 or recipe.master > 0
    has_policy = recipe.parameters == 2 and keeps_fp32
    policy = "MixedPrecisionPolicy, " if has_policy else ""
    imports = {
        "from torch.distributed.device_mesh import init_device_mesh",
        f"from torch.distributed.fsdp import {policy}fully_shard",
    }
    n, local = cluster.ranks, min(cluster.ranks, cluster.per_host)
    mesh = f"({n},)"
    if best.name == "HSDP":
        mesh = f'({n // local}, {local}), mesh_dim_names=("hosts", "ranks")'
    options = "mesh=mesh"
    if best.name == "ZeRO-2":
        options += ", reshard_after_forward=False"
    lines = f"    mesh = init_device_mesh(device, {mesh})\n{MADE}"
    if not keeps_fp32:
        lines += f"{AVERAGES}    model = model.to(torch.bfloat16)\n"
    lines += "    WRAPPED\n"
    if has_policy:
        reduced = "bfloat16" if recipe.gradients == 2 else "float32"
        lines += (
            "    # The model is made in fp32: FSDP's shards are the master copy.\n"
            "    precision = MixedPrecisionPolicy(\n"
            f"        param_dtype=torch.bfloat16, reduce_dtype=torch.{reduced}\n"
            "    )\n"
        )
        options += ", mp_policy=precision"
    lines += (
        "    for layer in model.LAYERS:\n"
        f"        fully_shard(layer, {options})\n"
        f"    fully_shard(model, {options})\n"
        f"{BEGIN}"
    )
    name, arguments, _ = optimizer_of(job)
    lines += f"    optimizer = {name}(model.parameters(), {arguments})\n"
    each = (
        "    for batch in micro_batches:  # each is reduced: no rank has room for whole gradients\n"
    )
    if best.name == "ZeRO-2":
        each = (
            "    for number, batch in enumerate(micro_batches, start=1):\n"
            "        # The gathered parameters stay until the last; each is reduced.\n"
            "        model.set_reshard_after_backward(number == len(micro_batches))\n"
        )
    if best.name == "HSDP":
        each = (
            "    for number, batch in enumerate(micro_batches, start=1):\n"
            "        # Ranks of a host reduce each, and hosts the sum of all.\n"
            "        model.set_requires_all_reduce(number == len(micro_batches))\n"
        )
    step = (
        "def train_step(model, optimizer, micro_batches):\n"
        f"{each}"
        "        loss = model(*batch) / len(micro_batches)\n"
        "        loss.backward()\n"
        f"{UPDATE}"
    )
    return imports, lines, step


def deepspeed_json(best: Option, job: Job, cluster: Cluster, dtype: str = "bf16") -> str:
    """The file for `deepspeed --deepspeed_config`, or a sentence if it can't express the plan.

    `dtype` is the GPU's format of 16 bits. DeepSpeed scales the loss by itself in fp16.
    """
    stage = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2}.get(best.name, 3)
    recipe, optimizer = job.recipe, optimizer_of(job).settings
    if optimizer is None:
        return "DeepSpeed's file has no 8-bit Adam: give one to deepspeed.initialize(optimizer=…)."
    if recipe.parameters == 2 and not recipe.master:
        return "DeepSpeed keeps a master copy in fp32 of parameters in bf16: choose it here, too."
    if best.name == "DDP" and recipe.gradients != recipe.parameters:
        return (
            "DeepSpeed's stage 0 keeps gradients in the format of the parameters: for DDP, choose a"
            " precision without gradients in fp32."
        )
    rows = max(1, round(job.rows))
    whole: dict[str, Any] = {
        "train_batch_size": rows * job.accumulate * cluster.ranks,
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": job.accumulate,
        "gradient_clipping": 1.0,
        "optimizer": optimizer,
        "zero_optimization": {"stage": 0},
    }
    if stage:
        whole["zero_optimization"] = {
            "stage": stage, "overlap_comm": True, "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,  # elements; ten times as many are its default
        }  # fmt: skip
        if optimizer["type"] != "AdamW":
            whole["zero_allow_untested_optimizer"] = True
    said = []
    if best.name == "HSDP":
        whole["zero_optimization"]["zero_hpz_partition_size"] = min(cluster.ranks, cluster.per_host)
        said.append("the nearest to HSDP: states are in shards of all ranks, not of a host")
    if best.checkpoint != "none":
        said.append("the model itself must checkpoint its blocks")
    if said:
        whole["comment"] = "; ".join(said)
    if recipe.parameters == 2:
        whole[dtype] = {"enabled": True}
        if recipe.gradients == 4:
            whole["data_types"] = {"grad_accum_dtype": "fp32"}
    return json.dumps(whole, indent=2)


def torchrun_line(cluster: Cluster) -> str:
    """The command for every host. HEAD is the name of one of them."""
    local = min(cluster.ranks, cluster.per_host)
    if cluster.ranks == local:
        return f"torchrun --standalone --nproc-per-node {local} train.py"
    meeting = "--rdzv-backend c10d --rdzv-endpoint HEAD:29500 --rdzv-id plan"
    return f"torchrun --nnodes {cluster.ranks // local} --nproc-per-node {local} {meeting} train.py"
