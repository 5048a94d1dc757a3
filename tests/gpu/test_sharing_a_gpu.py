"""Ranks that share one GPU, over gloo: DDP and ZeRO against one device. `make test-gpu`.

Tensors, streams and events are CUDA's, as with a GPU per rank; only the messages are gloo's. So one
GPU is enough to find a collective that doesn't wait for its gradient, or a step that doesn't wait
for its collective.
"""

from contextlib import nullcontext

import pytest
import torch

from distributed.ddp import DistributedDataParallel
from distributed.launching import launch
from distributed.runtime.mesh import mesh
from distributed.workbench.data import batches
from distributed.workbench.training import Alone, make_network, train, train_together
from distributed.zero import BY_STAGE, HSDP

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")
BATCH, STEPS = 96, 6
LONG = 20_000_000  # clock cycles: about 10 ms, in which a collective that doesn't wait would run
WEIGHTS = dict[str, torch.Tensor]


def network(device: torch.device) -> torch.nn.Module:
    """Of several blocks, in fp64: two runs that differ do so by more than rounding."""
    return make_network(width=256, depth=4).to(device, torch.float64)


def delay(gradient: torch.Tensor) -> None:
    """Keep the GPU busy first, so that the gradients that follow from this one are late."""
    if gradient.is_cuda:
        torch.cuda._sleep(LONG)


def delay_backward(layer: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
    if output.requires_grad:
        output.register_hook(delay)


def trained(group, way: str, side_stream: bool) -> tuple[list[float], WEIGHTS]:
    """One rank: losses of the whole batches, and the weights at the end."""
    model = network(group.device)
    for layer in model:
        layer.register_forward_hook(delay_backward)
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    on_cuda = side_stream and group.device.type == "cuda"
    with torch.cuda.stream(torch.cuda.Stream()) if on_cuda else nullcontext():
        if way == "ddp":
            wrapped = DistributedDataParallel(model, group, bucket_bytes=300_000)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

            def step() -> None:
                optimizer.step()
                optimizer.zero_grad()

            losses = train_together(group, wrapped, step, BATCH, STEPS)
            weights = {name: p.detach().cpu() for name, p in model.named_parameters()}
            return losses, weights
        if way == "hsdp":
            zero = HSDP(model, torch.optim.AdamW, *mesh(group, 2), lr=1e-2)
        else:
            zero = BY_STAGE[int(way[-1])](model, torch.optim.AdamW, group, lr=1e-2)
        losses = train_together(group, model, zero.step, BATCH, STEPS)
        return losses, {name: value.cpu().clone() for name, value in zero.full_parameters()}


def on_one_device(device: str) -> tuple[list[float], WEIGHTS]:
    alone = Alone(network(torch.device(device)), torch.optim.AdamW, lr=1e-2)
    losses = train(alone.model, alone.step, batches(1797, BATCH, STEPS), examples=BATCH)
    return losses, {name: p.detach().cpu() for name, p in alone.model.named_parameters()}


def check(way: str, side_stream: bool, device: str) -> None:
    losses, weights = on_one_device(device)
    ranks = 4 if way == "hsdp" else 2
    for found, same in launch(trained, way, side_stream, ranks=ranks, device=device, timeout=120):
        assert found == pytest.approx(losses, rel=1e-6)
        assert weights.keys() == same.keys()
        for name, value in weights.items():
            torch.testing.assert_close(same[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.skipif(GPUS > 1, reason="ranks of this test have a GPU each here")
@pytest.mark.parametrize("side_stream", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("way", ["ddp", "zero1", "zero2", "zero3", "hsdp"])
def test_ranks_that_share_a_gpu_end_with_the_weights_of_one_device(
    way: str, side_stream: bool
) -> None:
    check(way, side_stream, "cuda")
