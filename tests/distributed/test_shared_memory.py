"""Collectives over shared memory, and over hosts: as the backend's, to the number."""

from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from leftovers import shared_memory
from pools import launch_with_clock
from tests.rows import covering

from distributed import Group
from distributed.hierarchical import HierarchicalGroup, hierarchical_sent
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.shared_memory import SharedGroup

NUMPY = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "product": np.prod}


def place(shared, array, resident):
    """A copy of the array, in shared memory or not."""
    x = torch.from_numpy(array.copy())
    return shared.empty(x.numel(), x.dtype).copy_(x) if resident else x


def shared_all_reduce(group, arrays, op, resident, async_op, scratch):
    shared = SharedGroup(group, scratch)
    x = place(shared, arrays[group.rank], resident)
    result = shared.all_reduce(x, op, async_op)
    return np.asarray(result.wait() if async_op else result)


@given(
    ranks=st.integers(1, 5),
    n=st.one_of(st.integers(0, 20), st.integers(0, 3000)),
    op=st.sampled_from([*NUMPY]),
    dtype=st.sampled_from(["float64", "float32", "float16", "int64"]),
    resident=st.booleans(),
    async_op=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_reduce_is_numpys_wherever_the_tensors_live(
    pools, ranks, n, op, dtype, resident, async_op, seed
):
    op = "sum" if op == "avg" and dtype == "int64" else op
    arrays = np.random.default_rng(seed).choice([-2, -1, 1, 2], (ranks, n)).astype(dtype)
    results = pools[ranks](shared_all_reduce, arrays, op, resident, async_op, 1024)
    expected = NUMPY[op](arrays.astype("float64"), axis=0)
    for result in results:
        assert result.dtype == dtype
        np.testing.assert_allclose(result, expected, rtol=1e-3 if op == "avg" else 0)
        assert result.tobytes() == results[0].tobytes(), "equal to the bit"


def several(group, arrays):
    """All collectives, one after the other, on tensors here and there."""
    shared = SharedGroup(group, 256)
    whole = place(shared, arrays[group.rank], True)
    copied = torch.from_numpy(arrays[group.rank].copy())
    part = shared.empty(len(whole) // group.size, whole.dtype)
    got = []
    for x in (whole, copied):
        got.append(shared.reduce_scatter(x, part).clone())
        got.append(shared.all_gather(part, torch.empty_like(x)))
        # Each rank's part of its own buffer: at another place on every rank.
        mine = x[group.rank * len(part) :][: len(part)]
        got.append(shared.all_gather(mine, torch.empty_like(x)))
        got.append(shared.broadcast(x.clone(), root=group.size - 1))
    return [np.asarray(x) for x in got]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_and_broadcasts_from_any_place(pools, ranks):
    arrays = np.random.default_rng(ranks).integers(-9, 9, (ranks, 210 * ranks)).astype("float64")
    total = arrays.sum(0)
    parts = total.reshape(ranks, -1)
    own = np.concatenate([arrays[r].reshape(ranks, -1)[r] for r in range(ranks)])
    for rank, got in enumerate(pools[ranks](several, arrays)):
        for part, gathered, own_parts, last in (got[:4], got[4:]):
            np.testing.assert_array_equal(part, parts[rank])
            np.testing.assert_array_equal(gathered, total)
            np.testing.assert_array_equal(own_parts, own)
            np.testing.assert_array_equal(last, arrays[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_are_added_in_float32_and_rounded_once(pools, dtype):
    def add_up(group, given, resident):
        shared = SharedGroup(group)
        x = given[group.rank].clone()
        return shared.all_reduce(shared.empty(len(x), x.dtype).copy_(x) if resident else x).clone()

    given = torch.randn(4, 70_000, dtype=torch.float64).to(dtype)
    for resident in (False, True):
        for found in pools[4](add_up, given, resident):
            exact, total = given.double().sum(0), given.double().abs().sum(0)
            bound = torch.finfo(dtype).eps / 2 * exact.abs() + 2.0**-22 * total
            assert ((found.double() - exact).abs() <= bound).all()


def test_a_tensor_that_is_shared_on_some_ranks_only_is_copied(pools):
    def mixed(group):
        shared = SharedGroup(group)
        there = shared.empty(5).fill_(1.0)
        return shared.all_reduce(there if group.rank else torch.ones(5)).tolist()

    assert pools[3](mixed) == [[3.0] * 5] * 3


def test_many_at_once_stay_in_order(pools):
    def storm(group):
        shared = SharedGroup(group, 512)
        xs = [torch.full((100 + i,), float(group.rank + i)) for i in range(30)]
        handles = [shared.all_reduce(x, async_op=True) for x in xs[:20]]
        now = [shared.all_reduce(x)[0].item() for x in xs[20:]]  # waits for those before it
        return [handle.wait()[0].item() for handle in handles] + now

    assert pools[3](storm) == [[3.0 + 3 * i for i in range(30)]] * 3


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists what is open")
def test_nothing_is_left_in_the_file_system(pools):
    def files(group):
        shared = SharedGroup(group)
        shared.empty(1000).fill_(1)
        opened = [*Path("/proc/self/fd").iterdir()]
        links = [str(link.readlink()) for link in opened if link.is_symlink()]
        return [link for link in links if "memfd" in link]

    before = shared_memory()
    assert pools[2](files) == [[], []], "mapped, and closed"
    assert shared_memory() <= before


@covering(ranks__per_host=[(1, 1), (2, 1), (4, 2), (6, 2), (6, 3), (4, 4)], n=[1001, 5, 1, 0])
def test_over_hosts_the_sum_is_the_same_and_the_bytes_are_the_formulas(pools, ranks, per_host, n):
    def reduce(group, arrays, per_host):
        hierarchy = HierarchicalGroup(group, per_host)
        hierarchy.trace = trace = Trace(group.rank)
        x = arrays[group.rank].copy()
        assert hierarchy.all_reduce(x) is x
        mean = hierarchy.all_reduce(arrays[group.rank].copy(), "avg", async_op=True).wait()
        return x, mean, trace

    arrays = np.random.default_rng(n).integers(-9, 9, (ranks, n)).astype("float32")
    results = pools[ranks](reduce, arrays, per_host)
    for rank, (x, mean, trace) in enumerate(results):
        np.testing.assert_array_equal(x, arrays.sum(0))
        np.testing.assert_allclose(mean, arrays.mean(0), rtol=1e-6)
        sent = hierarchical_sent(n, rank, ranks, per_host)
        assert (trace.sent / 4, trace.messages) == (2 * sent.elements, 2 * sent.messages)


def test_over_hosts_a_collective_waits_for_those_that_were_begun_before_it(pools):
    def begin_one_and_make_another(group):
        hierarchy = HierarchicalGroup(group, 2)
        first, second = torch.ones(300_000), torch.full((300_000,), 2.0)
        for _ in range(3):
            handle = hierarchy.all_reduce(first, "avg", async_op=True)
            hierarchy.all_reduce(second, "avg")  # works in the same memory
            handle.wait()
        return first.unique().tolist(), second.unique().tolist()

    assert pools[4](begin_one_and_make_another) == [([1.0], [2.0])] * 4


def test_a_processor_that_reorders_stores_is_refused_and_hosts_use_messages(pools):
    def on_arm(group):
        with mock.patch("platform.machine", return_value="aarch64"):
            hierarchy = HierarchicalGroup(group, 2)
            total = hierarchy.all_reduce(torch.arange(5.0) + group.rank).tolist()
            try:
                SharedGroup(group)
            except ValueError as error:
                return total, str(error)

    for total, said in pools[4](on_arm):
        assert total == [6.0, 10.0, 14.0, 18.0, 22.0]
        assert "aarch64 may change the order of stores" in said


def test_memory_that_no_rank_uses_is_given_back(pools):
    def mapped():
        return Path("/proc/self/maps").read_text().count("memfd:rank")

    def make_many(group):
        shared = SharedGroup(group)
        kept = shared.empty(8).fill_(1.0)[2:6]  # a view alone keeps it
        only_here = shared.empty(8).fill_(1.0) if group.rank == 0 else shared.empty(8)[:0].clone()
        first = mapped()
        for n in range(1, 30):
            x = shared.empty(1000 * n).fill_(group.rank)
            assert (shared.all_reduce(x) == 1).all()
        del x, only_here
        last = shared.empty(10).fill_(group.rank)
        assert (shared.all_reduce(last) == 1).all()
        assert (shared.all_reduce(kept) == 2).all()
        return first, mapped(), len(shared.memory.resident), shared.memory.find(kept)[0] >= 0

    for first, after, resident, is_kept in pools[2](make_many):
        assert after <= first + 1  # not by two for each of 29 sizes
        assert resident == 2
        assert is_kept


def test_a_rank_that_does_not_come_is_named_after_the_groups_timeout(pools):
    def wait_for_nobody(group):
        backend = dist.new_group(timeout=timedelta(seconds=0.5))
        shared = SharedGroup(Group(group.device, None, group.size, backend))
        if group.rank == 0:
            with pytest.raises(TimeoutError, match=r"rank 1 has not come within 0\.5 s"):
                shared.all_reduce(torch.ones(3))
        group.barrier()

    pools[2](wait_for_nobody)


def test_wrong_arguments_are_named(pools):
    def wrong(group):
        said = []
        for make in (
            lambda: HierarchicalGroup(group, 2),
            lambda: SharedGroup(group).all_reduce(torch.arange(3), "avg"),
            lambda: SharedGroup(group).all_gather(torch.ones(2), torch.ones(7)),
        ):
            try:
                make()
            except ValueError as error:
                said.append(str(error))
        return said

    said = pools[3](wrong)[0]
    assert "per_host=2: 3 ranks do not make such hosts" in said[0]
    assert "op='avg' needs floating-point numbers" in said[1]
    assert "3 parts of torch.float32 [2] without gaps do not make torch.float32 [7]" in said[2]


def test_ranks_that_call_different_collectives_are_told():
    def misfit(group):
        shared = SharedGroup(group)
        shared.all_reduce(torch.ones(3)) if group.rank else shared.broadcast(torch.ones(3))

    with pytest.raises(RankError, match="different collectives"):
        launch_with_clock(misfit, ranks=2, timeout=20)
