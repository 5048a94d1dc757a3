"""What the stages send, against the counter and against the paper's 2Ψ and 3Ψ."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import covering

from distributed.ddp import DistributedDataParallel
from distributed.instruments.count_traffic import count_sent, ddp_sent, shard_sizes
from distributed.planner.traffic import elements_sent
from distributed.ring_group import RingGroup
from distributed.workbench.data import batches
from distributed.workbench.training import make_network
from distributed.zero import BY_STAGE, Zero3

ROWS = next(iter(batches(1797, 16, 1))).tolist()


def counted_and_predicted(group, stage, depth, options, resident=2):
    model = make_network(width=20, depth=depth)
    zero = BY_STAGE[stage](model, torch.optim.SGD, RingGroup(group), lr=0.1, **options)
    predicted = elements_sent(stage, group.size, *shard_sizes(zero), resident_blocks=resident)
    first = count_sent(zero, ROWS)
    return first, count_sent(zero, ROWS), {phase: 4 * n for phase, n in predicted.items()}


def ddp_counted(group):
    ddp = DistributedDataParallel(make_network(width=20, depth=5), RingGroup(group), 5000, 3000)
    count_sent(ddp, ROWS)  # in the first step ranks agree on an order of buckets, too
    sizes = [bucket.buffer.numel() for bucket in ddp.buckets]
    return count_sent(ddp, ROWS), {k: 4 * n for k, n in ddp_sent(ddp).items()}, sizes


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ddp_sends_what_the_formula_says(pools, ranks):
    psi = sum(p.numel() for p in make_network(width=20, depth=5).parameters())
    results = pools[ranks](ddp_counted)
    for counted, predicted, sizes in results:
        assert counted == predicted
        assert len(sizes) > 1
        assert sum(sizes) == psi
    assert sum(counted["backward"] for counted, *_ in results) == 4 * 2 * (ranks - 1) * psi


@covering(ranks=[5, 3, 2, 1, 8], stage=[3, 2, 1])
def test_every_step_sends_what_the_formula_says(pools, ranks, stage):
    for first, second, predicted in pools[ranks](counted_and_predicted, stage, 5, {}):
        assert first == second == predicted


@pytest.mark.parametrize(
    ("options", "resident"),
    [({"prefetch": False}, 1), ({"reshard_after_forward": False}, 100), ({}, 2)],
)
@pytest.mark.parametrize("depth", [1, 2, 6])
def test_what_is_kept_after_forward_is_not_sent_again(pools, options, resident, depth):
    for first, second, predicted in pools[3](counted_and_predicted, 3, depth, options, resident):
        assert first == second == predicted


@given(
    blocks=st.lists(st.integers(1, 1000), min_size=40, max_size=60),
    ranks=st.integers(2, 64),
)
def test_stages_1_and_2_send_what_ddp_sends_and_stage_3_at_most_half_more(blocks, ranks):
    ddp, *zero = (sum(elements_sent(stage, ranks, blocks).values()) for stage in range(4))
    psi = ranks * sum(blocks)
    assert ddp == pytest.approx(2 * psi * (ranks - 1) / ranks)
    assert zero[:2] == [ddp, ddp]
    assert zero[2] == 1.5 * ddp - (ranks - 1) * sum(blocks[-2:])


def checkpointed(group):
    """Blocks that are computed again in the backward pass are not gathered once more."""
    model = make_network(width=20, depth=5)
    zero = Zero3(model, torch.optim.SGD, RingGroup(group), lr=0.1)
    layers = [*model]

    def again(x):
        for layer in layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x

    model.forward = again
    predicted = elements_sent(3, group.size, *shard_sizes(zero))
    return count_sent(zero, ROWS), {phase: 4 * n for phase, n in predicted.items()}


def test_activation_checkpoints_cost_no_messages(pools):
    for counted, predicted in pools[2](checkpointed):
        assert counted == predicted
