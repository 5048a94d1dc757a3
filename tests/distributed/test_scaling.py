"""How steps scale: closed form against simulation, limits, scatter, networks that wait."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.cost import (
    SCATTER,
    Cluster,
    Link,
    Step,
    all_reduce,
    reduce_scatter_time,
    step_ddp,
    with_loading,
)
from distributed.cost import slowest as slowest_of
from distributed.ddp import DistributedDataParallel
from distributed.planner.published import CASES, Case
from distributed.scaling import BUCKET, buckets, flops_to_hide, step, strong, weak
from distributed.workbench.emulated import EmulatedLayer, emulated_network, train_step
from distributed.workbench.measure import fit

CLUSTER = Cluster(8, 8, Link(5e-6, 4.5e11), Link(1e-5, 5e10), 4e14)
clusters = st.builds(
    Cluster,
    ranks=st.integers(1, 500),
    per_host=st.sampled_from([1, 4, 8]),
    inside=st.builds(Link, st.floats(0, 1e-4), st.floats(1e9, 1e12)),
    between=st.builds(Link, st.floats(0, 1e-3), st.floats(1e8, 1e11)),
    speed=st.floats(1e12, 1e15),
    jitter=st.floats(0, 0.2),
    scatter=st.sampled_from([*SCATTER]),
    oversubscription=st.floats(1, 8),
)


@given(clusters, st.floats(1e6, 1e16), st.floats(1, 1e11), st.sampled_from([1e6, 25e6, 1e12]))
def test_the_closed_form_is_the_simulation_of_equal_buckets(cluster, flops, size, bucket):
    k = buckets(size, bucket)
    if k > 2000:
        return
    simulated = step_ddp(cluster, flops, [size / k] * k)
    found = step(cluster, flops, size, bucket)
    assert found == Step(*(pytest.approx(value) for value in simulated))


@given(st.floats(1e10, 1e16), st.floats(1e6, 1e11))
def test_weak_and_strong_scaling_meet_where_the_work_is_the_same(flops, size):
    (grown,) = weak(CLUSTER, flops, size, [64])
    (shared,) = strong(CLUSTER, 64 * flops, size, [64])
    assert grown.efficiency == pytest.approx(shared.efficiency)
    assert 0 < grown.efficiency <= 1 + 1e-9


def test_strong_scaling_ends_where_messages_fill_the_step():
    found = strong(CLUSTER, 1e17, 1e10, [2**i for i in range(20)])
    assert found[3].speedup == pytest.approx(8, rel=0.05)
    messages = all_reduce(CLUSTER._replace(ranks=2**19), 1e10)
    assert found[-1].speedup < 1e17 / CLUSTER.speed / messages * 1.01


def test_from_these_operations_on_only_the_last_message_is_waited_for():
    cluster, size = CLUSTER._replace(ranks=64), 1e10
    border = flops_to_hide(cluster, size)
    message = all_reduce(cluster, size / buckets(size))
    enough, less = step(cluster, 1.01 * border, size), step(cluster, 0.9 * border, size)
    assert enough.exposed == pytest.approx(message)
    assert less.exposed > 10 * message
    assert flops_to_hide(cluster._replace(ranks=1), size) == 0


@pytest.mark.parametrize(("size", "bucket"), [(-1, 1), (math.nan, 1), (1, 0), (1, -5)])
def test_bytes_that_make_no_sense(size, bucket):
    with pytest.raises(ValueError, match="give bytes, 0 or more"):
        buckets(size, bucket)
    assert buckets(0) == 1
    assert buckets(BUCKET + 1) == 2


@pytest.mark.parametrize("name", SCATTER)
@pytest.mark.parametrize("n", [2, 16, 1000])
def test_the_expected_largest_against_drawn_numbers(name, n):
    """1000 draws of n times with mean 1 and standard deviation 0.1."""
    generator, s = torch.Generator().manual_seed(n), 0.1
    normal = torch.randn(1000, n, generator=generator, dtype=torch.float64)
    sigma = math.sqrt(math.log(1 + s * s))
    drawn = {
        "normal": 1 + s * normal,
        "exponential": 1 - s - s * torch.rand(1000, n, generator=generator).double().log(),
        "lognormal": (sigma * normal - sigma**2 / 2).exp(),
    }[name]
    assert drawn.std().item() == pytest.approx(s, rel=0.05)
    largest = drawn.max(1).values.mean().item() - 1
    assert SCATTER[name](n, s) - 1 == pytest.approx(largest, rel=0.1)
    assert SCATTER[name](1, s) == 1.0
    assert SCATTER[name](n, 0.0) == 1.0


def test_an_unknown_scatter_is_named():
    with pytest.raises(ValueError, match="scatter='uniform': choose one of normal, exponential"):
        slowest_of(CLUSTER._replace(scatter="uniform"), 1.0)


def test_oversubscription_slows_what_leaves_a_host():
    far = CLUSTER._replace(ranks=64, inside=Link(0.0, 4.5e11), between=Link(0.0, 5e10))
    shared = far._replace(oversubscription=4.0)
    assert reduce_scatter_time(shared, 1e9) == pytest.approx(4 * reduce_scatter_time(far, 1e9))
    assert all_reduce(shared, 1e9) > all_reduce(far, 1e9)
    inside = [each._replace(ranks=8) for each in (shared, far)]
    assert reduce_scatter_time(inside[0], 1e9) == reduce_scatter_time(inside[1], 1e9)


def test_a_link_that_was_fitted_predicts_the_times_it_was_fitted_to():
    sizes = [10_000, 1_000_000]
    for alpha, beta in ((2e-4, 1e-9), (2e-4, 0.0)):
        sent = [6 * n / 4 for n in sizes]  # around a ring of four: six messages of a quarter
        times = [6 * alpha + beta * n for n in sent]
        link = Link.fitted(*fit([6, 6], sent, times))
        here = Cluster(4, 4, link, link, speed=1)
        assert [all_reduce(here, n) for n in sizes] == pytest.approx(times)
    assert math.isinf(Link.fitted(2e-4, 0.0).bandwidth)


def test_loading_ahead_hides_behind_a_step():
    one = Step(1.0, 0.9, 0.2)
    assert with_loading(one, 0.5).total == 1.0
    assert with_loading(one, 1.5).total == 1.5
    assert with_loading(one, 0.5, ahead=False).total == 1.5


def train_emulated(group):
    model = DistributedDataParallel(emulated_network(4, 30, 0.01), group, 3600, 3600)
    train_step(model)
    return [p.grad.unique().tolist() for p in model.parameters()], len(model.buckets)


def test_a_network_that_waits_trains_as_any_other(pools):
    for gradients, count in pools[2](train_emulated):
        assert gradients == [[1.0]] * 4
        assert count == 4


def test_layers_that_make_no_sense():
    with pytest.raises(ValueError, match="side=0, seconds=1"):
        EmulatedLayer(0, 1)
    with pytest.raises(ValueError, match="seconds=-1"):
        EmulatedLayer(5, -1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}, {c.base} to {c.ranks}")
def test_predictions_of_published_cases_are_near(case: Case):
    assert 0 < case.efficiency < 1
    assert 0 < case.predicted <= 1
    assert abs(case.deviation) < (0.1 if case.ranks < 512 else 0.17)
    assert case._replace(network=case.network / 10).predicted < case.predicted
    assert case._replace(ranks=case.base).predicted == 1


def test_half_of_the_published_cases_are_within_five_percent():
    off = sorted(abs(case.deviation) for case in CASES)
    assert off[len(off) // 2] < 0.05
