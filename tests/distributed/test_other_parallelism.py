"""Tensor and pipeline parallelism against one device, the counter, and the bubble's formula."""

import numpy as np
import pytest
import torch
from torch import nn

from distributed import pipeline_parallel, tensor_parallel
from distributed.all_reduce import ring_sent
from distributed.pipeline_parallel import (
    bubble,
    crossing,
    elements_sent,
    make_batch,
    make_stage,
    on_a_mesh,
    run_rank,
    waiting,
)
from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Span, Trace
from distributed.single_device import SingleDevice, Sizes, initial_weights, train
from distributed.workbench.data import batches, digits


@pytest.mark.parametrize(("ranks", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (2, 1)])
def test_a_mesh_learns_what_one_device_learns(pools, ranks, across):
    images, labels = digits("float64")
    alone = SingleDevice(initial_weights(Sizes(48, 64, 50, 10), dtype="float64"))
    rows = batches(len(images), 48, 6)
    expected = train(alone, ((images[r], labels[r]) for r in rows), 0.5)
    results = pools[ranks](tensor_parallel.train_rank, across, 48, 6, 50)
    for losses, *_ in results:
        np.testing.assert_allclose(losses, expected, rtol=1e-10)
    first_row = [weights["layer_0/weights"].numpy() for _, weights, *_ in results[:across]]
    whole = np.concatenate(first_row, axis=1)
    np.testing.assert_allclose(whole, alone.weights["layer_0/weights"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("ranks", "across"), [(2, 2), (4, 2), (4, 1)])
def test_results_go_along_rows_and_gradients_along_columns(pools, ranks, across):
    down = ranks // across
    for rank, (_, _, row, column) in enumerate(
        pools[ranks](tensor_parallel.train_rank, across, 48, 4, 60)
    ):
        assert row == 8 * ring_sent(48 // down * 10, rank % across, across).elements
        share = 60 // across
        expected = [ring_sent(n, rank // across, down).elements for n in (64 * share, share * 10)]
        assert column == 8 * sum(expected)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro", [1, 2, 8])
def test_a_pipeline_computes_the_gradients_of_one_device(pools, stages, micro):
    whole = nn.Sequential(*(make_stage(i, last=i == stages - 1) for i in range(stages)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (16,), generator=generator)
    loss = nn.functional.cross_entropy(whole(x), labels)
    loss.backward()
    results = pools[stages](run_rank, micro, 16, 0.0)
    assert results[-1][0] == pytest.approx(loss.item(), rel=1e-12)
    found = [gradient for _, gradients, _ in results for gradient in gradients]
    for a, b in zip(found, whole.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-10, atol=1e-12)


def sent_by_rank(group, micro, batch):
    stage = make_stage(group.rank, last=group.rank == group.size - 1)
    group.trace = trace = Trace(group.rank)
    x, labels = torch.zeros(batch, 32, dtype=torch.float64), torch.zeros(batch, dtype=torch.int64)
    pipeline_parallel.step(group, stage, micro, x, labels)
    group.trace = None
    return trace.sent, trace.messages


def test_it_sends_results_down_and_their_gradients_up(pools):
    row = 32 * 8
    assert pools[3](sent_by_rank, 4, 8) == [(8 * row, 4), (2 * 8 * row, 8), (8 * row, 4)]


@pytest.mark.parametrize(("ranks", "across"), [(4, 2), (2, 2), (2, 1)])
def test_a_pipeline_on_a_mesh_computes_the_gradients_of_one_device(pools, ranks, across):
    whole = nn.Sequential(*(make_stage(i, last=i == across - 1) for i in range(across)))
    x, labels = make_batch(16)
    nn.functional.cross_entropy(whole(x), labels).backward()
    results = pools[ranks](on_a_mesh, across, 2, 16)
    columns = ranks // across
    for row in range(columns):
        found = [
            g for gradients, _ in results[row * across : (row + 1) * across] for g in gradients
        ]
        for a, b in zip(found, whole.parameters(), strict=True):
            torch.testing.assert_close(a, b.grad, rtol=1e-10, atol=1e-12)
    numbers = sum(p.numel() for p in whole.parameters())
    along_rows, along_columns = 2 * (across - 1) * 16 * 32, 2 * (columns - 1) * numbers
    assert sum(sent for _, sent in results) == 8 * (along_rows + along_columns)


def test_from_the_crossing_on_data_parallelism_sends_less():
    border = crossing(parameters=3200, width=32)
    assert border == 100
    for stages in (2, 8):
        assert elements_sent(stages, 99, 32) < 2 * (stages - 1) * 3200
        assert elements_sent(stages, 101, 32) > 2 * (stages - 1) * 3200


def test_the_bubble():
    assert bubble(1, 4) == 0
    assert bubble(4, 1) == 0.75
    assert bubble(4, 13) == 3 / 16
    traces = [Trace(r, [Span("forward", "compute", r, r + 1)]) for r in range(4)]
    assert waiting(traces) == 0.75, "one micro-batch through four stages"


def test_micro_batches_must_be_equal(pools):
    with pytest.raises(RankError, match="micro=3: 16 rows"):
        pools[2](run_rank, 3, 16, 0.0)


def test_tensor_parallel_over_counted_messages(pools):
    def forward(group):
        weights = initial_weights(Sizes(4, 6, 8, 5), dtype="float64")
        mine = tensor_parallel.cut(weights, group.rank, group.size)
        x = np.ones((4, 6))
        model = tensor_parallel.TensorParallel(mine, RingGroup(group))
        return model.forward(x), SingleDevice(weights).forward(x)

    for found, expected in pools[3](forward):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
