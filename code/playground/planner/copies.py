"""The recommended plan in other words: a command line, PyTorch, DeepSpeed's settings, torchrun."""

import json
import shlex
from typing import Any

from distributed.cost import Cluster
from distributed.planner.job import Job, Option

# Selective checkpointing as the plan counts it: attention's result and every second product stay.
SELECTIVE = '''\
ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def keep_half():
    """Attention's result and every second matrix product are kept."""
    products = {False: 0, True: 0}  # forward, and again

    def policy(context, operation, *args, **kwargs):
        keep = operation in ATTENTION
        if operation is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


'''
WRAPPER = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
)


def command_line(words: list[str]) -> str:
    return shlex.join(["python", "-m", "distributed.plan", *words])


def torch_code(best: Option, job: Job, cluster: Cluster) -> str:
    """A function that makes a model, whose blocks are `model.layers`, train by this plan."""
    imports, lines = ["import torch"], list[str]()
    if best.checkpoint != "none":
        imports.append(WRAPPER)
        context = ", context_fn=keep_half" if best.checkpoint == "selective" else ""
        lines += [
            "for i, layer in enumerate(model.layers):",
            f"    model.layers[i] = checkpoint_wrapper(layer{context})",
        ]
    if best.name in ("DDP", "ZeRO-1"):
        imports.append("from torch.nn.parallel import DistributedDataParallel")
        lines += [
            "# Keep parameters in fp32, and compute under torch.autocast(device, torch.bfloat16).",
            "model = DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)",
        ]
        if job.recipe.parameters == 4:
            del lines[-2]
        returned = "model"
        if best.name == "ZeRO-1":
            imports.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
            lines += [
                "# It gathers after the step. The plan counts on Megatron's, which does so beside",
                "# the next forward pass: --use-distributed-optimizer --overlap-param-gather.",
                "adam = torch.optim.AdamW",
                "optimizer = ZeroRedundancyOptimizer(model.parameters(), adam, lr=1e-4)",
            ]
            returned = "model, optimizer"
    else:
        imports.append("from torch.distributed.device_mesh import init_device_mesh")
        is_bf16 = job.recipe.parameters == 2
        policy = "MixedPrecisionPolicy, " if is_bf16 else ""
        imports.append(f"from torch.distributed.fsdp import {policy}fully_shard")
        n, local = cluster.ranks, min(cluster.ranks, cluster.per_host)
        if best.name == "HSDP":
            mesh = f'({n // local}, {local}), mesh_dim_names=("hosts", "ranks")'
        else:
            mesh = f"({n},)"
        lines.append(f"mesh = init_device_mesh(device, {mesh})")
        options = "mesh=mesh"
        if best.name == "ZeRO-2":
            options += ", reshard_after_forward=False"
        if is_bf16:  # parameters are kept in fp32: the master copy
            reduced = "bfloat16" if job.recipe.gradients == 2 else "float32"
            lines += [
                "# The model is made in fp32: FSDP's shards are the master copy.",
                f"precision = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.{reduced})",
            ]
            options += ", mp_policy=precision"
        lines += [
            "for layer in model.layers:",
            f"    fully_shard(layer, {options})",
            f"fully_shard(model, {options})",
        ]
        returned = "model"
    helper = ""
    if best.checkpoint == "selective":
        imports += ["from torch.utils.checkpoint import (", "    CheckpointPolicy,"]
        imports += ["    create_selective_checkpoint_contexts,", ")"]
        helper = SELECTIVE
    body = "\n".join(f"    {line}" for line in [*lines, f"return {returned}"])
    head = "\n".join(imports)
    return f'{head}\n\n\n{helper}def parallelize(model, device="cuda"):\n{body}\n'


def deepspeed_json(best: Option, job: Job, cluster: Cluster) -> str:
    """The file for `deepspeed --deepspeed_config`. MiCS is DeepSpeed's name for HSDP."""
    stage = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2}.get(best.name, 3)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if best.name == "HSDP":
        zero["mics_shard_size"] = min(cluster.ranks, cluster.per_host)
    rows = max(1, round(job.rows))
    whole: dict[str, Any] = {
        "train_batch_size": rows * job.accumulate * cluster.ranks,
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": job.accumulate,
        "zero_optimization": zero if stage else {"stage": 0},
    }
    if job.recipe.parameters == 2:
        whole["bf16"] = {"enabled": True}
        if job.recipe.gradients == 4:
            whole["data_types"] = {"grad_accum_dtype": "fp32"}
    return json.dumps(whole, indent=2)


def torchrun_line(cluster: Cluster) -> str:
    """What to start on every host. HEAD is the name of one of them."""
    local = min(cluster.ranks, cluster.per_host)
    if cluster.ranks == local:
        return f"torchrun --standalone --nproc-per-node {local} train.py"
    meeting = "--rdzv-backend c10d --rdzv-endpoint HEAD:29500 --rdzv-id plan"
    return f"torchrun --nnodes {cluster.ranks // local} --nproc-per-node {local} {meeting} train.py"
