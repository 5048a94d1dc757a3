"""Samplers, accumulation and BatchNorm over ranks, beside one device and beside PyTorch's."""

import copy
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from distributed.accumulation import (
    IGNORED,
    accumulate,
    accumulate_means,
    count_bytes,
    network,
    uneven_batches,
)
from distributed.all_reduce import ring_sent
from distributed.batchnorm import SyncBatchNorm, convert
from distributed.ddp import DistributedDataParallel
from distributed.sampler import ShardSampler, seed_worker, torchs_share, worker_seed

# ------------------------------------------------------------------ samplers


@given(
    length=st.integers(0, 200),
    ranks=st.integers(1, 17),
    drop_last=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_all_shares_together_are_the_examples_once(length, ranks, drop_last, epoch):
    samplers = [ShardSampler(length, rank, ranks, drop_last=drop_last) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    shares = [list(sampler) for sampler in samplers]
    together = sorted(number for share in shares for number in share)
    lengths = {len(share) for share in shares}
    assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]
    if drop_last:
        assert len(together) == len(set(together)) == length - length % ranks
        assert len(lengths) == 1
    else:
        assert together == [*range(length)]
        assert max(lengths) - min(lengths) <= 1


def test_an_epoch_has_an_order_of_its_own_and_the_same_in_every_run():
    orders = []
    for epoch in (0, 1, 0):
        sampler = ShardSampler(50, 1, 2)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert list(ShardSampler(50, 1, 2, seed=7)) != orders[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [0, 3, 8])
def test_a_run_that_was_stopped_reads_the_rest_of_the_epoch_and_nothing_else(workers, batches):
    """A loader with workers has asked for rows by then on which nobody has trained."""
    rows, sampler = torch.arange(64), ShardSampler(64, 0, 2)
    sampler.set_epoch(3)
    whole = list(sampler)
    trained = []
    loader = DataLoader(rows, 4, sampler=sampler, num_workers=workers)
    for batch in islice(loader, batches):
        trained += batch.tolist()
        sampler.advance(len(batch))
    later = ShardSampler(64, 0, 2)
    later.load_state_dict(sampler.state_dict())
    later.set_epoch(3)
    for batch in DataLoader(rows, 4, sampler=later, num_workers=workers):
        trained += batch.tolist()
        later.advance(len(batch))
    assert trained == whole
    later.set_epoch(4)
    sampler.set_epoch(4)
    assert list(later) == list(sampler) != whole, "the next epoch begins at its beginning"


def test_a_share_of_other_ranks_is_not_gone_on_with():
    sampler = ShardSampler(16, 0, 2)
    sampler.advance(4)
    with pytest.raises(ValueError, match="of 2 ranks, and here are 4, who would skip"):
        ShardSampler(16, 0, 4).load_state_dict(sampler.state_dict())


def test_a_look_at_a_sampler_takes_nothing_away():
    sampler = ShardSampler(10, 0, 1)
    next(iter(sampler))
    assert len(list(sampler)) == len(list(sampler)) == 10


def test_an_epoch_that_is_done_is_not_begun_again_and_has_no_more_than_its_examples():
    sampler = ShardSampler(10, 0, 2)
    sampler.advance(5)
    with pytest.raises(RuntimeError, match=r"epoch 0 is done: .* set_epoch"):
        iter(sampler)
    with pytest.raises(ValueError, match="examples=1: 5 of 5 are done in epoch 0"):
        sampler.advance(1)


def test_a_step_does_not_shuffle_the_epoch_to_know_its_length():
    sampler = ShardSampler(10**12, 0, 8)  # whose order would not fit in memory
    sampler.advance(32)
    assert len(sampler) == 10**12 // 8


def test_an_epoch_may_be_over_where_a_loaded_state_ends_and_not_where_training_ended():
    sampler = ShardSampler(8, 0, 2)
    sampler.load_state_dict({"epoch": 0, "done": 4, "ranks": 2})
    assert [*sampler] == []  # a run that was stopped at the end of an epoch reads its rest: nothing
    sampler.load_state_dict({"epoch": 0, "done": 2, "ranks": 2})
    sampler.advance(2)
    with pytest.raises(RuntimeError, match="epoch 0 is done"):
        iter(sampler)


def test_pytorchs_sampler_repeats_where_ours_does_not():
    assert sorted(n for r in range(4) for n in torchs_share(10, r, 4)) == sorted([*range(10), 0, 1])
    assert sorted(n for r in range(4) for n in torchs_share(10, r, 4, True)) == [*range(8)]


def test_every_worker_of_every_rank_has_a_seed_of_its_own():
    seeds = {worker_seed(0, r, w, e) for r in range(8) for w in range(4) for e in range(3)}
    assert len(seeds) == 8 * 4 * 3
    seed_worker(worker_seed(0, 1, 2))
    first = torch.rand(1), np.random.rand()
    seed_worker(worker_seed(0, 1, 2))
    assert first == (torch.rand(1), np.random.rand())


def test_no_such_rank():
    with pytest.raises(ValueError, match="rank=4: the ranks are 0 to 3"):
        ShardSampler(10, 4, 4)


# ------------------------------------------------------------------ accumulation


def gradients(group, count, means):
    model = DistributedDataParallel(network(), group)
    batches = uneven_batches(group.rank, group.size, count)
    mean = None
    if means:
        accumulate_means(model, batches)
    else:
        mean = accumulate(model, batches)
    return mean, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (1, 4), (2, 3), (4, 2), (3, 5)])
def test_accumulated_gradients_are_those_of_all_tokens_at_once(pools, ranks, count):
    alone = network()
    batches = [batch for rank in range(ranks) for batch in uneven_batches(rank, ranks, count)]
    x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss = nn.functional.cross_entropy(alone(x), labels, ignore_index=IGNORED)
    loss.backward()
    for mean, grads in pools[ranks](gradients, count, False):
        assert mean == pytest.approx(loss.item(), rel=1e-12)
        for got, parameter in zip(grads, alone.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-11, atol=1e-13)
    if ranks * count > 1:
        _, wrong = pools[ranks](gradients, count, True)[0]
        apart = (wrong[0] - alone[0].weight.grad).norm() / alone[0].weight.grad.norm()
        assert apart > 0.01, "the mean of means is another gradient"


@pytest.mark.parametrize("counts", [[False, True], [False, False]])
def test_a_rank_may_have_no_label_that_counts_but_not_all(pools, counts):
    def no_label(group, counts):
        model = DistributedDataParallel(network(), group)
        (x, labels), *_ = uneven_batches(group.rank, group.size, 1)
        labels = labels if counts[group.rank] else torch.full_like(labels, IGNORED)
        try:
            mean = accumulate(model, [(x, labels)])
        except ValueError as error:
            return str(error)
        return mean, [p.grad for p in model.parameters()]

    if not any(counts):
        said = "micro_batches: no label counts on any rank: leave this batch out"
        assert pools[2](no_label, counts) == [said, said]
        return
    alone = network()
    ((x, labels),) = uneven_batches(1, 2, 1)
    loss = nn.functional.cross_entropy(alone(x), labels, ignore_index=IGNORED)
    loss.backward()
    for mean, grads in pools[2](no_label, counts):
        assert mean == pytest.approx(loss.item(), rel=1e-12)
        for got, parameter in zip(grads, alone.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("ranks", "passes"), [(2, 2), (4, 5)])
def test_no_sync_saves_all_but_one_pass_to_the_byte(pools, ranks, passes):
    gradients_sent = [
        8 * ring_sent(sum(p.numel() for p in network().parameters()), rank, ranks).elements
        for rank in range(ranks)
    ]
    each = pools[ranks](count_bytes, passes, True)
    once = pools[ranks](count_bytes, passes, False)
    saved = [a - b for a, b in zip(each, once, strict=True)]
    assert saved == [sent * (passes - 1) for sent in gradients_sent]


# ------------------------------------------------------------------ BatchNorm


def normalise(group, x, cuts, grads, seed):
    torch.manual_seed(seed)
    mine = slice(cuts[group.rank], cuts[group.rank + 1])
    module = convert(nn.BatchNorm1d(x.shape[1]).double(), group)
    given = x[mine].clone().requires_grad_()
    y = module(given)
    y.backward(grads[mine])
    for p in module.parameters():
        group.all_reduce(p.grad)
    return y.detach(), given.grad, [p.grad for p in module.parameters()], [*module.buffers()]


@given(
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    length=st.sampled_from([None, 3]),
    seed=st.integers(0, 99),
)
def test_synced_batchnorm_is_batchnorm_of_the_whole_batch(pools, rows, length, seed):
    rows[0] += 2
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(rows), 3) if length is None else (sum(rows), 3, length)
    x, grads = (torch.randn(shape, generator=generator).double() for _ in range(2))
    x += 100  # a mean far from 0: sums of squares would cancel
    cuts = [0, *np.cumsum(rows)]

    torch.manual_seed(seed)
    alone = nn.BatchNorm1d(3).double()
    whole = x.clone().requires_grad_()
    y = alone(whole)
    y.backward(grads)
    results = pools[len(rows)](normalise, x, cuts, grads, seed)
    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(torch.cat([r[0] for r in results]), y.detach(), **close)
    torch.testing.assert_close(torch.cat([r[1] for r in results]), whole.grad, **close)
    for _, _, of_parameters, (mean, variance, count) in results:
        for got, parameter in zip(of_parameters, alone.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, **close)
        torch.testing.assert_close(mean, alone.running_mean, **close)
        torch.testing.assert_close(variance, alone.running_var, **close)
        assert count == 1


@pytest.mark.parametrize("momentum", [0.0, 0.3, None])
def test_running_statistics_move_as_torchs_do(pools, momentum):
    batches = [torch.arange(8.0).view(4, 2) ** power for power in (1, 2)]

    def run(group):
        synced = convert(nn.BatchNorm1d(2, momentum=momentum), group)
        for batch in batches:
            synced(batch.chunk(group.size)[group.rank])
        return synced.running_mean, synced.running_var

    alone = nn.BatchNorm1d(2, momentum=momentum)
    for batch in batches:
        alone(batch)
    for mean, variance in pools[2](run):
        torch.testing.assert_close(mean, alone.running_mean)
        torch.testing.assert_close(variance, alone.running_var)


def test_a_checkpoint_fits_with_and_without_synced_norms(pools):
    def load_both_ways(group):
        plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        synced = convert(copy.deepcopy(plain), group)
        for module in (plain, synced):
            module[1].running_mean += 1
        synced.load_state_dict(plain.state_dict())
        plain.load_state_dict(synced.state_dict())
        return list(synced.state_dict()) == list(plain.state_dict())

    assert pools[2](load_both_ways) == [True, True]


def test_evaluation_uses_running_statistics_and_weights_are_kept(pools):
    def evaluate(group):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        synced = convert(copy.deepcopy(plain), group)
        plain.eval(), synced.eval()
        x = torch.randn(3, 4)
        return (plain(x) == synced(x)).all().item(), isinstance(synced[1], SyncBatchNorm)

    assert pools[2](evaluate) == [(True, True)] * 2


def test_a_frozen_norm_stays_frozen(pools):
    def frozen(group):
        plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
        synced = convert(plain, group)
        before = synced[1].running_mean.clone()
        synced(torch.randn(3, 4))
        return synced[1].training, torch.equal(synced[1].running_mean, before)

    assert pools[2](frozen) == [(False, True)] * 2


def test_a_norm_that_stands_in_several_places_is_converted_in_all_of_them(pools):
    def kinds(group):
        norm, pair = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = convert(nn.Sequential(norm, nn.ReLU(), norm, pair, pair), group)
        found = [type(part) for _, part in model.named_modules(remove_duplicate=False)]
        assert model[0] is model[2]
        assert model[3][1] is model[4][1]
        return found.count(nn.BatchNorm1d), found.count(SyncBatchNorm)

    assert pools[2](kinds) == [(0, 4)] * 2


@pytest.mark.parametrize("norm_dtype", ["16 bits", "32 bits"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_synced_batchnorm_in_16_bits_counts_and_adds_in_32(pools, dtype, norm_dtype):
    """More rows than float16 can count, on a mean at which bfloat16 has steps of 1/64."""

    def normalise(group, dtype, norm_dtype):
        generator = torch.Generator().manual_seed(group.rank)
        x = (torch.randn(1, 2, 300, 300, generator=generator) + 3).to(dtype)
        norm = SyncBatchNorm(nn.BatchNorm2d(2, momentum=1.0), group)
        if norm_dtype == "16 bits":
            norm = norm.to(dtype)
        leaf = x.clone().requires_grad_()
        y = norm(leaf)
        y.float().square().sum().backward()
        return x, y.detach(), leaf.grad, norm.running_mean.float(), norm.running_var.float()

    results = pools[2](normalise, dtype, norm_dtype)
    whole = torch.cat([x for x, *_ in results]).float().requires_grad_()
    alone = nn.BatchNorm2d(2, momentum=1.0)
    expected = alone(whole)
    expected.square().sum().backward()
    tolerance = 2 * torch.finfo(dtype).eps
    of_sums = 1e-5 if norm_dtype == "32 bits" else tolerance
    for rank, (_, y, _, mean, variance) in enumerate(results):
        assert y.dtype == dtype
        torch.testing.assert_close(
            y.float(), expected[rank : rank + 1], rtol=tolerance, atol=tolerance
        )
        torch.testing.assert_close(mean, alone.running_mean, rtol=of_sums, atol=of_sums)
        torch.testing.assert_close(variance, alone.running_var, rtol=of_sums, atol=of_sums)
    for rank, (_, _, grad, *_) in enumerate(results):
        assert grad.dtype == dtype
        torch.testing.assert_close(
            grad.float(), whole.grad[rank : rank + 1], rtol=0, atol=8 * tolerance
        )


def test_synced_batchnorm_takes_what_autocast_hands_it(pools):
    def train(group):
        module = convert(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), group)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(torch.randn(8, 3))
        y.float().square().mean().backward()
        norm = module[1]
        return norm.weight.grad.dtype, norm.running_mean.dtype, y.dtype

    assert pools[2](train)[0] == (torch.float32, torch.float32, torch.bfloat16)


def test_a_second_derivative_of_synced_batchnorm_is_refused(pools):
    def penalty(group):
        norm = SyncBatchNorm(nn.BatchNorm1d(2), group)
        x = torch.randn(4, 2, requires_grad=True)
        with pytest.raises(RuntimeError, match="SyncBatchNorm has no second derivative"):
            torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)

    pools[2](penalty)


def test_a_copy_of_a_synced_norm_is_over_the_same_ranks(pools):
    def copied(group):
        part = group.split(group.rank // 2)
        norm = copy.deepcopy(SyncBatchNorm(nn.BatchNorm1d(1, momentum=1.0), part))
        norm(torch.full((2, 1), float(group.rank)))
        return norm.running_mean.item()

    assert pools[4](copied) == [0.5, 0.5, 2.5, 2.5]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_with_too_few_rows_on_all_ranks_is_counted(pools, rows):
    def refuse(group, rows):
        norm = SyncBatchNorm(nn.BatchNorm1d(3), group)
        with pytest.raises(ValueError, match=f"on all ranks together: {rows}; a variance"):
            norm(torch.ones(rows if group.rank == 0 else 0, 3))

    pools[2](refuse, rows)


def test_torchs_own_refuses_the_cpu_and_ours_names_what_it_cannot_do(pools):
    def refuse(group):
        said = []
        for make in (
            lambda: nn.SyncBatchNorm(2)(torch.zeros(2, 2)),
            lambda: SyncBatchNorm(nn.BatchNorm1d(2, affine=False), group),
            lambda: SyncBatchNorm(nn.BatchNorm1d(2), group)(torch.zeros(1 - group.rank, 2)),
        ):
            try:
                make()
            except ValueError as error:
                said.append(str(error))
        return said

    torchs, affine, one_row = pools[2](refuse)[0]
    assert "SyncBatchNorm expected input tensor to be on GPU" in torchs
    assert "affine=True" in affine
    assert "on all ranks together: 1; a variance needs 2" in one_row
