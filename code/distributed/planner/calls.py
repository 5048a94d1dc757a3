"""The call behind each strategy, in one line, by whose code trains it.

PyTorch has no name for ZeRO-2 and ZeRO-3: they are `fully_shard` with different arguments.
"""

from distributed.cost import Cluster
from distributed.runtime.script import run_script

ADAM = "torch.optim.AdamW"
EACH = "  # each block, then model"
CALLS = {
    "pytorch": {
        "DDP": "DistributedDataParallel(model)",
        "ZeRO-1": f"ZeroRedundancyOptimizer(model.parameters(), {ADAM})  # and DDP",
        "ZeRO-2": f"fully_shard(block, reshard_after_forward=False){EACH}",
        "HSDP": f"fully_shard(block, mesh=init_device_mesh({{mesh}})){EACH}",
        "ZeRO-3": f"fully_shard(block){EACH}",
    },
    "megatron": {
        "DDP": "the default",
        "ZeRO-1": "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "ZeRO-3": "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
    },
    "deepspeed": {
        "DDP": '"zero_optimization": {"stage": 0}',
        "ZeRO-1": '"zero_optimization": {"stage": 1}',
        "ZeRO-2": '"zero_optimization": {"stage": 2}',
        "HSDP": '"zero_optimization": {"stage": 3, "zero_hpz_partition_size": {local}}',
        "ZeRO-3": '"zero_optimization": {"stage": 3}',
    },
    "book": {
        "DDP": "DistributedDataParallel(model)",
        "ZeRO-1": f"Zero1(model, {ADAM})",
        "ZeRO-2": f"Zero2(model, {ADAM})",
        "HSDP": f"HSDP(model, {ADAM}, inside, between)",
        "ZeRO-3": f"Zero3(model, {ADAM})",
    },
}


def call_of(name: str, stack: str, cluster: Cluster) -> str:
    """The call of a strategy on this cluster."""
    local = min(cluster.ranks, cluster.per_host)
    shape = f'"cuda", ({cluster.ranks // local}, {local}), mesh_dim_names=("hosts", "ranks")'
    return CALLS[stack][name].replace("{mesh}", shape).replace("{local}", str(local))


def main() -> None:
    """All of them, on two hosts of eight GPUs."""
    from distributed.planner.hardware import GPUS
    from distributed.planner.job import cluster_of
    from distributed.planner.schedules import STACKS

    cluster = cluster_of(GPUS["h100"], 16)
    for stack, schedules in STACKS.items():
        for name in schedules:
            print(f"{stack:10}{name:7}{call_of(name, stack, cluster)}")
    assert CALLS.keys() == STACKS.keys()


if __name__ == "__main__":
    run_script(main)
