"""HSDP against one device, against the counter, and on hosts that are not full."""

import pytest
import torch
from tests.rows import covering
from torch import nn

from distributed.instruments.count_traffic import shard_sizes
from distributed.planner.traffic import between_hosts, elements_sent
from distributed.ring_group import RingGroup
from distributed.runtime.mesh import mesh
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches
from distributed.workbench.training import Alone, make_network, train
from distributed.zero import HSDP

CLIP = 0.5


def weights_of_rank(group, per_host, micro):
    inside, between = mesh(group, per_host)
    model = make_network(seed=group.rank, width=11, depth=3).double()
    trained = HSDP(model, torch.optim.AdamW, inside, between, lr=0.01)

    def step():
        trained.clip_grad_norm_(CLIP)
        trained.step()

    for rows in batches(1797, 24, 4):
        mine = rows[group.rank :: group.size]
        parts = [mine[i::micro] for i in range(micro)]
        for part in parts[:-1]:
            train(model, lambda: None, [part], 24 / group.size)
        train(model, step, [parts[-1]], 24 / group.size)
    return {name: value.clone() for name, value in trained.full_parameters()}


@covering(ranks__per_host=[(4, 2), (6, 2), (6, 3), (4, 1), (4, 4)], micro=[2, 1])
def test_weights_are_those_of_one_device_on_every_host(pools, ranks, per_host, micro):
    model = make_network(width=11, depth=3).double()
    alone = Alone(model, torch.optim.AdamW, lr=0.01)

    def step():
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        alone.step()

    train(model, step, batches(1797, 24, 4), 24)
    for found in pools[ranks](weights_of_rank, per_host, micro):
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-9, atol=1e-9)


def sent_by_rank(group, per_host):
    inside, between = (RingGroup(part) for part in mesh(group, per_host))
    model = make_network(width=16, depth=4)
    trained = HSDP(model, torch.optim.SGD, inside, between, lr=0.1)
    inside.trace, between.trace = Trace(0), Trace(0)
    for _ in range(3):  # accumulate: between hosts goes only the sum
        train(model, lambda: None, batches(1797, 8, 1), 8.0)
    before = between.trace.sent
    trained.step()
    shares = [unit.layout.shard_size for unit in trained.units]
    return before, between.trace.sent, inside.trace.sent, shares, shard_sizes(trained)


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (6, 2), (6, 3)])
def test_between_hosts_goes_a_share_once_a_step(pools, ranks, per_host):
    hosts = ranks // per_host
    results = pools[ranks](sent_by_rank, per_host)
    for rank, (before, between, inside, shares, (blocks, root)) in enumerate(results):
        assert before == 0
        assert between == 4 * between_hosts(shares, rank // per_host, hosts)
        # Buffers still hold the first two blocks from the backward pass before, and the root.
        each = sum(elements_sent(3, per_host, blocks, root).values())
        stayed = (per_host - 1) * (blocks[0] + blocks[1] + root)
        assert inside == 4 * (3 * each - 2 * stayed)
    in_all = sum(between for _, between, *_ in results)
    assert in_all == 4 * 2 * (hosts - 1) * per_host * sum(results[0][3])


def test_hosts_must_be_full(pools):
    with pytest.raises(RankError, match="across=4: 6 ranks do not make rows of that length"):
        pools[6](mesh, 4)


def buffers_of_rank(group):
    inside, between = mesh(group, 2)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(group.rank)
    HSDP(model, torch.optim.SGD, inside, between, lr=0.1)
    return model[1].running_mean.tolist()


def test_buffers_come_from_rank_0(pools):
    assert pools[4](buffers_of_rank) == [[0, 0]] * 4


def frozen_of_rank(group):
    inside, between = mesh(group, 2)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False).fill_(group.rank)
    trained = HSDP(model, torch.optim.SGD, inside, between, lr=0.1)
    return next(p.tolist() for name, p in trained.full_parameters() if name == "0.weight")


def test_frozen_parameters_come_from_rank_0(pools):
    assert pools[4](frozen_of_rank) == [[[0, 0], [0, 0]]] * 4


def another_model_on_the_second_host(group):
    inside, between = mesh(group, 2)
    width = 3 if group.rank >= 2 else 2
    HSDP(nn.Linear(2, width), torch.optim.SGD, inside, between, lr=0.1)


def test_hosts_must_have_the_same_model(pools):
    with pytest.raises(
        RankError, match=r"weight float32\[3, 2\] on rank 1, weight float32\[2, 2\]"
    ):
        pools[4](another_model_on_the_second_host)
