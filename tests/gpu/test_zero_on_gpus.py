"""ZeRO, DDP and mixed precision where there are GPUs: `make test-gpu`."""

import pytest
import torch
from torch import nn

from distributed.ddp import DistributedDataParallel
from distributed.elastic import train_rank
from distributed.memory import Recipe, total
from distributed.memory_use import make_network
from distributed.traffic import CLASSES
from distributed.world import launch

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="this machine has no CUDA GPU")
WIDTH, DEPTH = 1024, 12  # about 12 million parameters: more than what the allocator rounds


def allocated_on_rank(group, stage: int) -> tuple[int, int]:
    """Bytes that PyTorch's allocator holds for parameters and states, and the parameter count."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(group.device)
    with torch.device(group.device):
        model = make_network(width=WIDTH, depth=DEPTH)
    count = sum(p.numel() for p in model.parameters())
    zero = CLASSES[stage](model, torch.optim.Adam, group, lr=1e-3)
    for _ in range(2):
        model(torch.randn(8, 64, device=group.device)).square().mean().backward()
        zero.step()
    torch.cuda.synchronize(group.device)
    return torch.cuda.memory_allocated(group.device) - before, count


@pytest.mark.parametrize("stage", CLASSES)
@pytest.mark.parametrize("ranks", [GPUS, GPUS + 1])
def test_cudas_own_counter_agrees_with_the_formula(stage: int, ranks: int) -> None:
    """Parameters and Adam's states stay from step to step; gradients are freed, or are one room."""
    for held, count in launch(allocated_on_rank, stage, ranks=ranks, device="cuda", timeout=120):
        least = total(count, ranks, stage, Recipe(4, 0, 0, 8))
        most = total(count, ranks, stage, Recipe(4, 4, 0, 8))
        assert 0.98 * least <= held <= 1.05 * most + 2**25  # and rooms of a bucket or a block


@pytest.mark.parametrize("stage", CLASSES)
def test_gpus_train_as_one_device_does(stage: int, tmp_path) -> None:
    given = stage, 256, 6, 6
    expected = launch(train_rank, str(tmp_path / "cpu"), *given, ranks=1, device="cpu")[0]
    found = launch(train_rank, str(tmp_path / "gpu"), *given, ranks=GPUS, device="cuda")[0]
    assert found == pytest.approx(expected, rel=1e-3)


def overlap_on_rank(group) -> tuple[float, float]:
    """When the first all-reduce began and when the last gradient was ready (ms, CUDA events)."""
    with torch.device(group.device):
        model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(12)))
    wrapped = DistributedDataParallel(model, group)
    x = torch.randn(4096, 4096, device=group.device)
    begun, first, ready = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    sent = []

    def note(group, bucket):
        if not sent:
            first.record()
        sent.append(bucket)
        return group.all_reduce(bucket.flat, "avg", async_op=True)

    for _ in range(3):
        sent.clear()
        wrapped.register_comm_hook(note)
        begun.record()
        wrapped(x).square().mean().backward()
        ready.record()
    torch.cuda.synchronize(group.device)
    return begun.elapsed_time(first), begun.elapsed_time(ready)


@pytest.mark.skipif(GPUS < 2, reason="one GPU has nobody to send to")
def test_the_first_bucket_leaves_before_the_last_gradient_is_ready() -> None:
    for first, ready in launch(overlap_on_rank, ranks=GPUS, device="cuda", timeout=120):
        assert first < 0.8 * ready
