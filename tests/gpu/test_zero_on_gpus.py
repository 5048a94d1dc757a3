"""ZeRO, DDP and mixed precision where there are GPUs: `make test-gpu`."""

import pytest
import torch
from torch import nn

from distributed.ddp import DistributedDataParallel
from distributed.elastic import train_rank
from distributed.launching import launch
from distributed.model_states import Recipe, total
from distributed.runtime.mesh import mesh
from distributed.workbench.data import batches
from distributed.workbench.training import Alone, make_network, train, train_together
from distributed.zero import BY_STAGE, HSDP

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")
WIDTH, DEPTH = 1024, 12  # about 12 million parameters


def requested(device) -> int:
    """Bytes that were asked of CUDA's allocator and are not given back: without its rounding."""
    torch.cuda.synchronize(device)
    return torch.cuda.memory_stats(device)["requested_bytes.all.current"]


def requested_on_rank(group, stage: int) -> tuple[int, int, int]:
    """Bytes that training keeps from step to step, those of buckets, parameters."""

    def learn(model, step):
        for _ in range(2):
            model(torch.randn(8, 64, device=group.device)).square().mean().backward()
            step()

    with torch.device(group.device):
        warm_up = make_network(width=WIDTH, depth=DEPTH)
    learn(warm_up, lambda: None)  # what cuBLAS works in is asked for once, and stays
    del warm_up
    before = requested(group.device)
    with torch.device(group.device):
        model = make_network(width=WIDTH, depth=DEPTH)
    count = sum(p.numel() for p in model.parameters())
    zero = BY_STAGE[stage](model, torch.optim.Adam, group, lr=1e-3)
    learn(model, zero.step)
    buckets = sum(bucket.nbytes for bucket in zero.tensors().get("buckets", []))
    return requested(group.device) - before, buckets, count


@pytest.mark.parametrize("stage", BY_STAGE)
@pytest.mark.parametrize("ranks", [GPUS, GPUS + 1])
def test_cudas_own_counter_agrees_with_the_formula(stage: int, ranks: int) -> None:
    """ZeRO-1 keeps memory for all gradients, ZeRO-3 two buffers for gathered blocks."""
    recipe = Recipe(4, 4 if stage == 1 else 0, 0, 8)
    gathered = 2 * 4 * (WIDTH**2 + WIDTH) if stage == 3 else 0
    results = launch(requested_on_rank, stage, ranks=ranks, device="cuda", timeout=120)
    for held, buckets, count in results:
        expected = total(count, ranks, stage, recipe) + gathered + buckets
        assert held == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("stage", BY_STAGE)
def test_gpus_train_as_one_device_does(stage: int, tmp_path) -> None:
    given = stage, 256, 6, 6
    expected = launch(train_rank, str(tmp_path / "cpu"), *given, ranks=1, device="cpu")[0]
    found = launch(train_rank, str(tmp_path / "gpu"), *given, ranks=GPUS, device="cuda")[0]
    assert found == pytest.approx(expected, rel=1e-3)


def hybrid_on_rank(group, batch: int, steps: int) -> list[float]:
    """Losses with HSDP on hosts of two ranks."""
    model = make_network(seed=group.rank).to(group.device)
    zero = HSDP(model, torch.optim.AdamW, *mesh(group, 2), lr=1e-2)
    return train_together(group, model, zero.step, batch, steps)


@pytest.mark.skipif(GPUS < 4, reason="four GPUs wanted: gloo has no messages between GPUs")
def test_gpus_train_as_one_device_does_on_two_hosts() -> None:
    alone = Alone(make_network(), torch.optim.AdamW, lr=1e-2)
    expected = train(alone.model, alone.step, batches(1797, 256, 6), examples=256)
    for losses in launch(hybrid_on_rank, 256, 6, ranks=4, device="cuda"):
        assert losses == pytest.approx(expected, rel=1e-3)


def half_on_rank(group, stage: int, batch: int, steps: int) -> tuple[list[float], bool]:
    """Losses with parameters in bf16; whether what is gathered is the fp32 shards, rounded."""
    model = make_network(seed=group.rank).to(group.device)
    zero = BY_STAGE[stage](model, torch.optim.AdamW, group, param_dtype=torch.bfloat16, lr=1e-2)
    losses = train_together(group, model, zero.step, batch, steps)
    same = []
    for unit in zero.trained:
        full = torch.empty(unit.layout.size, dtype=torch.bfloat16, device=group.device)
        mine = unit.layout.shard(unit.all_gather(full), group.rank)
        same.append(torch.equal(mine, unit.shard.bfloat16()))
    return losses, all(same)


@pytest.mark.parametrize("stage", BY_STAGE)
def test_mixed_precision_learns_what_float32_learns(stage: int) -> None:
    alone = Alone(make_network(), torch.optim.AdamW, lr=1e-2)
    expected = train(alone.model, alone.step, batches(1797, 256, 30), examples=256)
    for losses, rounded in launch(half_on_rank, stage, 256, 30, ranks=GPUS, device="cuda"):
        assert rounded
        assert losses == pytest.approx(expected, rel=0.05)


def overlap_on_rank(group) -> tuple[float, float]:
    """When the first bucket had come and when the last gradient was ready (ms, CUDA events).

    Another stream waits for the bucket, so that what computes does not.
    """
    with torch.device(group.device):
        model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(12)))
    wrapped = DistributedDataParallel(model, group)
    x = torch.randn(4096, 4096, device=group.device)
    begun, came, ready = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    aside = torch.cuda.Stream(group.device)
    sent = []

    def note(group, bucket):
        ready.record()  # the last one counts: of the last bucket, before anything waits
        handle = group.all_reduce(bucket.buffer, "avg", async_op=True)
        if not sent:
            with torch.cuda.stream(aside):
                handle.wait()
                came.record()
        sent.append(bucket)
        return handle

    wrapped.register_comm_hook(note)
    for _ in range(3):
        sent.clear()
        begun.record()
        wrapped(x).square().mean().backward()
        torch.cuda.synchronize(group.device)
    assert len(sent) > 2
    return begun.elapsed_time(came), begun.elapsed_time(ready)


@pytest.mark.skipif(GPUS < 2, reason=f"two GPUs wanted, {GPUS} found")
def test_the_first_bucket_has_come_before_the_last_gradient_is_ready() -> None:
    for came, ready in launch(overlap_on_rank, ranks=GPUS, device="cuda", timeout=120):
        assert came < ready
