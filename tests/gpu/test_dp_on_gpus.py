"""Data parallelism where there are GPUs: `make test-gpu`."""

import numpy as np
import pytest
import torch

from distributed.dp import train_data_parallel
from distributed.launching import launch
from distributed.single_device import SIZES, SingleDevice, as_torch, initial_weights
from playground.planner.measured_cases import known

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")


def where_am_i(group):
    x = group.all_reduce(torch.full((3,), float(group.rank), device=group.device), op="avg")
    return str(group.device), x.tolist()


def test_a_rank_for_every_gpu_talks_over_nccl(capsys):
    results = launch(where_am_i, ranks=GPUS)
    assert "· nccl · a GPU each\n" in capsys.readouterr().out
    mean = (GPUS - 1) / 2
    assert results == [(f"cuda:{rank}", [mean] * 3) for rank in range(GPUS)]


def test_more_ranks_than_gpus_share_them_over_gloo_and_say_so(capsys):
    results = launch(where_am_i, ranks=GPUS + 1, device="cuda")
    assert "· gloo · sharing" in capsys.readouterr().out
    assert [device for device, _ in results] == [f"cuda:{r % GPUS}" for r in range(GPUS + 1)]
    assert {tuple(x) for _, x in results} == {(GPUS / 2,) * 3}


@pytest.mark.parametrize("ranks", [GPUS, GPUS + 1])
def test_gpus_learn_the_curve_of_the_cpu(ranks):
    expected, _ = train_data_parallel(1, steps=40, dtype="float64", device="cpu")
    losses, replicas = train_data_parallel(ranks, steps=40, dtype="float64", device="cuda")
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    for weights in replicas:
        assert all((weights[name].cpu() == replicas[0][name].cpu()).all() for name in weights)


def test_the_full_size_network_runs_in_half_precision():
    sizes = SIZES["full"]
    weights = as_torch(initial_weights(sizes), "cuda")
    model = SingleDevice({name: weight.bfloat16() for name, weight in weights.items()})
    x = torch.randn(sizes.b, sizes.d, device="cuda", dtype=torch.bfloat16)
    y = model.forward(x)
    grads = model.backward(torch.ones_like(y))
    assert y.shape == (sizes.b, sizes.o)
    for name, weight in weights.items():
        assert grads[name].shape == weight.shape
        assert grads[name].isfinite().all()


def test_a_large_product_in_half_precision_reaches_a_good_part_of_the_peak():
    """With less, it is throttled or shared, and times measured on it would mislead."""
    one = known(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])
    if one is None:
        pytest.skip(f"a GPU wanted whose peak is known, {torch.cuda.get_device_name()} found")
    n, times = 8192, 20
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for product in range(times + 5):
        if product == 5:
            begun.record()
        a @ b
    ended.record()
    torch.cuda.synchronize()
    share = 2 * n**3 * times / (begun.elapsed_time(ended) / 1e3) / one.peak
    assert 0.4 < share < 1.05
