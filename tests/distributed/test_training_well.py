"""Precision, parameter servers, local SGD, gossip and batch sizes, against what they stand for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import covering
from torch import nn

from distributed import async_sgd, local_sgd, precision
from distributed.compressors import Cast, Gradients
from distributed.dp import shard
from distributed.large_batch import (
    estimate,
    measure_noise,
    noise_of_ranks,
    scaled,
    train,
    tune,
    warm_up,
)
from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.simple_ddp import train_by_hand
from distributed.workbench.data import batches, digits
from distributed.workbench.training import make_network

PSI = sum(p.numel() for p in make_network(norm=True).parameters())


# --- 16 bits


def test_a_loss_scale_halves_at_once_and_doubles_after_a_while():
    scale = precision.LossScale(1024, every=3)
    seen = []
    for finite in (True, True, True, True, False, True, True, True):
        scale.update(finite)
        seen.append(scale.scale)
    assert seen == [1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048]


def test_a_loss_scale_stays_at_its_smallest_and_grows_again():
    scale = precision.LossScale(4.0, every=1, smallest=1.0)
    for _ in range(1200):
        scale.update(False)
    assert scale.scale == 1.0
    scale.update(True)
    assert scale.scale == 2.0


@pytest.mark.parametrize("way", [*precision.WAYS])
def test_bytes_follow_the_bits_and_it_learns(pools, way):
    results = pools[2](precision.train_rank, way, make_network(norm=True), 64, 30, 0.1)
    dtype = precision.WAYS[way][0]
    for losses, sent, _ in results:
        assert losses == results[0][0]
        assert losses[-1] < 0.7 * losses[0]
        assert sent == pytest.approx(PSI * dtype.itemsize, rel=1e-3)  # 2Ψ(N − 1)/N, for two


def test_float32_is_training_by_hand(pools):
    losses, *_ = pools[2](precision.train_rank, "float32", make_network(norm=True), 64, 10, 0.1)[0]
    module = make_network(norm=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    images, labels = (torch.from_numpy(array) for array in digits())
    for rows, loss_there in zip(batches(1797, 64, 10), losses, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(loss_there, rel=1e-4)


def overflow_on_one(group):
    mixed = precision.MixedPrecision(
        nn.Linear(2, 1, bias=False), group, torch.float16, 0.1, precision.LossScale(2.0**10)
    )
    before = mixed.pairs[0][0].detach().clone()
    x = torch.full((1, 2), 60_000.0 if group.rank == 1 else 1.0).half()
    mixed.backward(mixed.half(x).float().sum())
    mixed.step()
    return torch.equal(before, mixed.pairs[0][0]), mixed.skipped, mixed.loss_scale.scale


def test_one_ranks_overflow_skips_the_step_everywhere(pools):
    assert pools[3](overflow_on_one) == [(True, 1, 512.0)] * 3


def means_of_float16(group, gradient):
    """One gradient, averaged by all that average in float16."""
    x = torch.full((4,), gradient)
    Cast(torch.float16).average(group, Gradients(x, [x], [x]))
    mixed = precision.MixedPrecision(nn.Linear(4, 1, bias=False), group, torch.float16, 1.0)
    mixed.module.weight.data.zero_()
    mixed.half.weight.grad = torch.full((1, 4), gradient, dtype=torch.float16)
    mixed.step()  # W = 0 − 1.0 · mean
    by_group = group.all_reduce(torch.full((4,), gradient, dtype=torch.float16), "avg")
    return [mean.flatten()[0].item() for mean in (by_group, x, -mixed.module.weight)]


@pytest.mark.parametrize("gradient", [1.2e-7, 0.3, 30_000.0])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_mean_in_float16_is_the_same_whatever_makes_it(pools, ranks, gradient):
    for means in pools[ranks](means_of_float16, gradient):
        assert means == [pytest.approx(gradient, rel=0.01)] * 3
        assert len({*means}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_frozen_parameters_stay_and_unused_ones_count_as_zero(pools, dtype):
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(2, 2).requires_grad_(False)
            self.one, self.other = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

        def forward(self, x, use):
            return getattr(self, use)(self.frozen(x) * 0 + x)

    def moved(group, dtype):
        module = Halves()
        mixed = precision.MixedPrecision(module, group, dtype, 1.0)
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        x = torch.ones(1, 2, dtype=dtype)
        mixed.backward(mixed.half(x, ["one", "other"][group.rank]).float().sum())
        mixed.step()
        return {name: (before[name] - p).detach() for name, p in module.named_parameters()}

    for changes in pools[2](moved, dtype):
        for name, change in changes.items():
            expected = torch.full_like(change, 0.0 if "frozen" in name else 0.5)
            torch.testing.assert_close(change, expected, atol=1e-6, rtol=0)


def test_tiny_gradients_need_the_scale_in_float16(pools):
    run = pools[2]
    usual = run(precision.train_rank, "float16, scaled", make_network(norm=True), 64, 40, 0.1, 1e6)[
        0
    ][0]
    lost = run(
        precision.train_rank, "float16, not scaled", make_network(norm=True), 64, 40, 0.1, 1e6
    )[0][0]
    assert usual[-1] < 0.7 * usual[0]
    assert lost[-1] > 0.9 * lost[0]


# --- servers


def test_a_server_that_waits_for_all_is_synchronous_sgd(pools):
    served, _, final = pools[4](async_sgd.train_with_server, 12, 0.1, 3)[0]
    assert served.staleness == [0] * 36
    assert served.late == 0
    module = make_network(norm=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    images, labels = (torch.from_numpy(array) for array in digits())
    of_workers = [list(batches(1797, 32, 24, seed=rank)) for rank in (1, 2, 3)]
    for step in range(12):
        optimizer.zero_grad()
        for rows in of_workers:
            loss = nn.functional.cross_entropy(module(images[rows[step]]), labels[rows[step]])
            (loss / 3).backward()
        optimizer.step()
    assert final == pytest.approx(nn.functional.cross_entropy(module(images), labels).item(), 1e-4)


def test_a_server_and_its_workers_may_be_a_part_of_the_ranks(pools):
    def serve(group):
        part = group.split(int(group.rank > 0))
        served, *_ = async_sgd.train_with_server(part, 6, 0.1, 2) if group.rank else (None,)
        return served and len(served.losses)

    assert pools[4](serve) == [None, 12, None, None]


def test_nobody_waits_and_gradients_are_stale(pools):
    served, *_ = pools[4](async_sgd.train_with_server, 90, 0.02, 1, (0.002,) * 3)[0]
    assert len(served.losses) == 90
    gradients = 90 + 2  # those of the two others were under way at the end
    assert served.trace.received == gradients * 4 * (PSI + 2)
    assert served.trace.sent == gradients * 4 * (PSI + 1)
    # Update v answers one worker with weights v. So from each version at most one gradient comes,
    # but for the first, which all three had; and a worker that waits for nobody comes late.
    came_from = [version - stale for version, stale in enumerate(served.staleness)]
    assert sorted(set(came_from)) == sorted(came_from)[came_from.count(0) - 1 :]
    assert came_from.count(0) == 3
    assert np.mean(served.staleness) > 1, "most of the time others delivered in between"


def test_backups_are_late_and_thrown_away(pools):
    served, *_ = pools[4](async_sgd.train_with_server, 30, 0.1, 2, (0.0, 0.0, 0.02))[0]
    assert served.late > 0
    assert len(served.losses) == 60
    assert set(served.staleness) == {0}


@pytest.mark.parametrize("wait_for", [0, 3])
def test_a_server_cannot_wait_for_workers_that_are_not_there(pools, wait_for):
    with pytest.raises(RankError, match=f"wait_for={wait_for}: there are 2 workers"):
        pools[3](async_sgd.train_with_server, 5, 0.1, wait_for)


# --- old gradients


def test_old_gradients_diverge_at_a_rate_at_which_new_ones_learn(pools):
    now = pools[2](async_sgd.train_delayed, 0, 0.3, 60)[0]
    assert now[-1] < now[0] / 4
    old = pools[2](async_sgd.train_delayed, 16, 0.3, 60)[0]
    assert max(old[-10:]) > 2 * old[0]


def one_weight(group, delay, rate, steps):
    weight = nn.Parameter(torch.ones((), dtype=torch.float64))
    delayed = async_sgd.Delayed([weight], group, delay, rate)
    for _ in range(steps):
        delayed.step((2 * group.rank + 1) * weight.square() / 4)  # two ranks: curvature 1
    return weight.item()


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_the_rate_that_a_quadratic_bears_is_that_of_the_roots(pools, delay):
    """z^(delay + 1) = z^delay − rate: all |z| < 1 below the bound, one is larger above it."""
    for share, rests in ((0.97, True), (1.03, False)):
        rate = share * async_sgd.stable(delay)
        largest = abs(np.roots([1, -1, *[0] * (delay - 1), rate] if delay else [1, rate - 1])).max()
        assert (largest < 1) == rests == async_sgd.comes_to_rest(delay, rate)
    w = [1.0] * (delay + 1)
    for _ in range(8):
        w.append(w[-1] - 0.3 * w[-1 - delay])
    assert pools[2](one_weight, delay, 0.3, 8 + delay)[0] == pytest.approx(w[-1])


class Counts(nn.Module):
    """A buffer that every forward pass changes, and one that none does, of more than 8 bits."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.tensor([1 / 3]))

    def forward(self, x):
        self.seen += len(x)
        return x


@covering(dtype=[torch.bfloat16, torch.float16], master=[True, False])
def test_the_module_has_the_buffers_of_the_copy_that_computes(pools, dtype, master):
    def train(group, dtype, master):
        torch.manual_seed(0)
        module = nn.Sequential(Counts(), nn.BatchNorm1d(3), nn.Linear(3, 1))
        mixed = precision.MixedPrecision(module, group, dtype, 0.0, master=master)
        alone = nn.BatchNorm1d(3)
        for _ in range(200):
            x = (torch.randn(8, 3) * 0.1 + 4).to(dtype)
            alone(x)
            mixed.backward(mixed.half(x).float().square().mean())
            mixed.step()
        return module[1].state_dict(), alone.state_dict(), module[0].seen, module[0].table

    for ours, alone, seen, table in pools[2](train, dtype, master):
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(ours[name], alone[name])
        # bfloat16 counts by eights up to 2,048 and no further than float16: both are exact here.
        assert seen == 1600
        assert table.item() == torch.tensor(1 / 3).item()


# --- local steps


def test_to_agree_in_every_step_is_data_parallelism(pools):
    def both(group):
        losses, *_ = local_sgd.train_rank(group, "every 1", 64, 12)
        return losses

    module = make_network(norm=True)
    images, labels = (torch.from_numpy(array) for array in digits())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    expected = []
    for rows in batches(1797, 64, 12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert pools[4](both)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("every", "ranks"), [(1, 2), (4, 3), (8, 4)])
def test_bytes_fall_by_the_steps_between(pools, every, ranks):
    for _, sent, apart in pools[ranks](local_sgd.train_rank, f"every {every}", 48, 16):
        assert sent == pytest.approx(16 / every * 2 * 4 * PSI * (ranks - 1) / ranks, rel=1e-3)
        assert apart < 1e-6


def outer_steps(group):
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(1.0)
    agree = local_sgd.LocalSGD(module, group, every=2, outer_lr=0.5, momentum=0.9)
    seen = []
    for _ in range(2):
        for _ in range(2):
            module.weight.data -= 0.1 * (group.rank + 1)  # two ranks: by 0.1, by 0.2
            agree.step()
        seen.append(module.weight.item())
    return seen


def test_the_outer_step_is_sgd_with_nesterov_on_the_mean_change(pools):
    weight = nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], 0.5, 0.9, nesterov=True)
    expected = []
    for _ in range(2):
        weight.grad = torch.tensor(0.3)  # the mean of 0.2 and 0.4
        optimizer.step()
        expected.append(weight.item())
    assert pools[2](outer_steps) == [pytest.approx(expected)] * 2


def test_training_that_ends_between_two_averages_is_finished(pools):
    def train(group):
        module = nn.Linear(1, 1, bias=False)
        agree = local_sgd.LocalSGD(module, group, every=4)
        module.weight.data.fill_(0.0)
        agree.agreed[0].data.fill_(0.0)
        seen = []
        for _ in range(6):
            module.weight.data += group.rank + 1.0
            agree.step()
        seen.append(module.weight.item())
        for _ in range(2):  # the second time there is nothing to do
            agree.finish()
            seen.append(module.weight.item())
        return seen

    assert pools[2](train) == [[6 + 2, 6 + 3, 6 + 3], [6 + 4, 6 + 3, 6 + 3]]
    for *_, apart in pools[3](local_sgd.train_rank, "every 8", 48, 10):
        assert apart < 1e-6


@pytest.mark.parametrize("way", [lambda *given: local_sgd.LocalSGD(*given, 1), local_sgd.Gossip])
def test_weights_of_several_dtypes_and_memory_formats_are_averaged_in_place(pools, way):
    def agree_once(group, way):
        conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        module = nn.Sequential(conv, nn.Linear(4, 2).bfloat16())
        agree = way(module, group)
        before = [(p.dtype, p.stride(), p.data_ptr(), p.detach().clone()) for p in agree.parameters]
        for p in module.parameters():
            p.data += 2 * group.rank
        agree.step()
        for p, (dtype, stride, address, was) in zip(agree.parameters, before, strict=True):
            assert (p.dtype, p.stride(), p.data_ptr()) == (dtype, stride, address)
            torch.testing.assert_close(p.detach(), was + 1, rtol=0.02, atol=0.02)

    pools[2](agree_once, way)


def test_gossip_of_two_is_the_mean_of_two(pools):
    assert pools[2](gossip_once) == [(0.5, 4), (0.5, 4)]


def gossip_once(group):
    module = nn.Linear(1, 1, bias=False)
    agree = local_sgd.Gossip(module, RingGroup(group))
    agree.group.trace = trace = Trace(group.rank)
    module.weight.data.fill_(float(group.rank))
    agree.step()
    return module.weight.item(), trace.sent


def test_gossip_averages_with_two_neighbours_and_keeps_the_mean(pools):
    results = pools[5](gossip_once)
    expected = [(0 + 1 + 4) / 3, 1, 2, 3, (4 + 3 + 0) / 3]
    assert [weight for weight, _ in results] == pytest.approx(expected)
    assert sum(weight for weight, _ in results) == pytest.approx(10)
    assert {sent for _, sent in results} == {8}
    assert pools[1](gossip_once)[0] == (0.0, 0)


def test_nonsense_is_refused(pools):
    with pytest.raises(RankError, match="every=0"):
        pools[2](local_sgd.train_rank, "every 0", 8, 1)
    with pytest.raises(RankError, match="way='often'"):
        pools[2](local_sgd.train_rank, "often", 8, 1)
    with pytest.raises(RankError, match=r"pauses=.*one for each of 1 workers"):
        pools[2](async_sgd.train_with_server, 5, 0.1, 1, (0.0, 0.0))
    with pytest.raises(RankError, match="way='int8': choose one of float32, bfloat16"):
        pools[2](precision.train_rank, "int8", make_network(norm=True), 8, 1, 0.1)
    with pytest.raises(RankError, match="delay=-1"):
        pools[2](async_sgd.train_delayed, -1, 0.1, 5)
    with pytest.raises(ValueError, match="rule='square'"):
        scaled(0.1, 64, 16, "square")
    with pytest.raises(ValueError, match="optimizer='adam': a name from"):
        train(16, 0.1, 1, optimizer="adam")
    for ranks, batch in ((2, 65), (1, 64)):
        with pytest.raises(RankError, match=f"batch={batch}, {ranks} ranks: 2 or more"):
            pools[ranks](measure_noise, batch, 4, 0.1)
    with pytest.raises(ValueError, match="in most=3 steps"):
        tune(64, (0.1,), 3, 0.1)
    with pytest.raises(ValueError, match="b_small=4, b_large=4"):
        estimate(1.0, 1.0, 4, 4)


# --- batches


@given(
    squared=st.floats(0.01, 10), noise=st.floats(0.01, 1000), sizes=st.tuples(
        st.integers(1, 50), st.integers(51, 500))
)  # fmt: skip
def test_two_sizes_give_back_what_they_came_from(squared, noise, sizes):
    small, large = (squared + noise / size for size in sizes)
    found = estimate(small, large, *sizes)
    assert found.squared == pytest.approx(squared, rel=1e-4, abs=1e-6)
    assert found.noise == pytest.approx(noise, rel=1e-4)
    assert found.examples == pytest.approx(noise / squared, rel=1e-3, abs=1e-3)


def known_noise(group):
    """Gradients of mean (1, …, 1) with variance 9/4 in each of 400 places, on each rank."""
    random = torch.Generator().manual_seed(group.rank)
    seen = []
    for _ in range(40):
        g = [1 + 1.5 * torch.randn(20, 20, generator=random)]
        seen.append(noise_of_ranks(group, g))
    mean = g[0].mean().item()
    return [sum(x) / len(seen) for x in zip(*seen, strict=True)], mean


def test_the_noise_of_a_known_distribution(pools):
    (small, large), mean = pools[4](known_noise)[0]
    found = estimate(small, large, 1, 4)
    assert found.squared == pytest.approx(400, rel=0.05)
    assert found.noise == pytest.approx(400 * 2.25, rel=0.05)
    assert mean == pytest.approx(1, abs=0.2)


def test_small_gradients_in_16_bits_have_the_same_noise(pools):
    def noise(group, dtype):
        random = torch.Generator().manual_seed(group.rank)
        g = 2e-4 * (0.5 + torch.randn(1000, generator=random))
        return noise_of_ranks(group, [g.to(dtype)])

    exact = pools[4](noise, torch.float32)[0]
    assert pools[4](noise, torch.float16)[0] == pytest.approx(exact, rel=0.01)


@pytest.mark.slow
def test_tuning_finds_the_rate_of_the_fewest_steps():
    every = {rate: train(64, rate, 80, 1.0).steps_to_goal for rate in (0.05, 0.1, 0.2)}
    rate, steps = tune(64, tuple(every), 80, 1.0, seeds=2)
    assert every[rate] == min(every.values()) == steps[0]
    assert steps[1] == train(64, rate, 80, 1.0, seed=1).steps_to_goal


def test_rates_and_warm_up():
    assert scaled(0.1, 64, 16, "linear") == pytest.approx(0.4)
    assert scaled(0.1, 64, 16, "root") == pytest.approx(0.2)
    assert scaled(0.1, 64, 16, "same") == 0.1
    assert [warm_up(4)(i) for i in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert warm_up(0)(0) == 1


def test_on_ranks_a_batch_learns_what_it_learns_on_one_device(pools):
    alone = train(64, 0.1, 10)
    assert len(alone.losses) == 10
    assert alone.steps_to_goal is None
    assert train(64, 0.1, 200, goal=1.0).steps_to_goal < 100
    assert shard(np.arange(8), 1, 2).tolist() == [4, 5, 6, 7]
    assert len(pools[2](train_by_hand, 64, 2)[0][0]) == 2
