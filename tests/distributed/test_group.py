"""What ranks do together, against what NumPy says of all their arrays at once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed.world import RankError, launch

REDUCE = {
    "sum": lambda arrays: arrays.sum(0),
    "avg": lambda arrays: arrays.mean(0),
    "max": lambda arrays: arrays.max(0),
    "min": lambda arrays: arrays.min(0),
}


def reduce_mine(group, arrays, op, library):
    mine = arrays[group.rank, ...]  # also of shape []: an array, not a number
    mine = torch.from_numpy(mine) if library == "torch" else mine.copy()
    returned = group.all_reduce(mine, op=op)
    assert returned is mine, "works in place and returns its array"
    return np.asarray(mine)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 8),
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    op=st.sampled_from([*REDUCE]),
    library=st.sampled_from(["numpy", "torch"]),
    dtype=st.sampled_from(["float32", "float64", "int64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_reduce_is_the_reduction_over_all_ranks(pools, ranks, shape, op, library, dtype, seed):
    if op == "avg" and dtype == "int64":
        op = "sum"
    arrays = np.random.default_rng(seed).integers(-9, 9, (ranks, *shape)).astype(dtype)
    results = pools[ranks](reduce_mine, arrays, op, library)
    expected = REDUCE[op](arrays)
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_array_with_gaps_is_reduced_in_place_and_its_gaps_are_left_alone(pools, library):
    def reduce_every_other_column(group):
        whole = np.full((3, 4), float(group.rank + 1))
        part = (torch.from_numpy(whole) if library == "torch" else whole)[:, ::2]
        group.all_reduce(part)
        return whole

    for rank, whole in enumerate(pools[2](reduce_every_other_column)):
        assert (whole[:, ::2] == 3).all()
        assert (whole[:, 1::2] == rank + 1).all()


@pytest.mark.parametrize("source", [0, 2])
def test_broadcast_gives_every_rank_the_array_of_the_source(pools, source):
    def give(group):
        return group.broadcast(np.full(3, float(group.rank)), source)

    for result in pools[3](give):
        assert (result == source).all()


def test_a_barrier_is_left_only_when_all_have_come(pools, tmp_path):
    def come_late(group, folder):
        (folder / str(group.rank)).touch()
        group.barrier()
        return len([*folder.iterdir()])

    assert pools[4](come_late, tmp_path) == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda group: group.all_reduce(torch.ones(1), op="mean"), "op='mean': choose one of sum"),
        (lambda group: group.all_reduce(torch.ones(1).int(), op="avg"), "needs floating-point"),
        (lambda group: group.all_reduce([1.0]), "x must be a torch tensor or a NumPy array"),
        (lambda group: group.broadcast(torch.ones(1), source=2), "source=2: the ranks are 0 to 1"),
    ],
)
def test_a_wrong_argument_is_named(wrong, message):
    with pytest.raises(RankError, match=message):
        launch(wrong, ranks=2, device="cpu")


@pytest.mark.parametrize(
    ("differ", "named"),
    [
        (
            lambda group: group.all_reduce(torch.ones(3 + (group.rank == 1))),
            ["all_reduce sum of float32[3]", "all_reduce sum of float32[4]"],
        ),
        (
            lambda group: group.all_reduce(np.ones(2, "float32" if group.rank else "float64")),
            ["all_reduce sum of float32[2]", "all_reduce sum of float64[2]"],
        ),
        (
            lambda group: group.all_reduce(torch.ones(1), op="avg" if group.rank else "sum"),
            ["all_reduce sum of float32[1]", "all_reduce avg of float32[1]"],
        ),
        (
            lambda group: group.broadcast(torch.ones(1), source=group.rank),
            ["broadcast from 0 of float32[1]", "broadcast from 1 of float32[1]"],
        ),
        (
            lambda group: group.barrier() if group.rank else group.all_reduce(torch.ones(1)),
            ["barrier", "all_reduce sum of float32[1]"],
        ),
    ],
)
def test_ranks_that_call_different_things_are_told_so_instead_of_hanging(differ, named):
    with pytest.raises(RankError, match="the ranks call different collectives") as caught:
        launch(differ, ranks=2, device="cpu", timeout=20)
    for call in named:
        assert call in str(caught.value)


def test_ranks_that_agree_are_never_told_that_they_differ(pools):
    def many(group):
        for i in range(300):
            group.broadcast(np.ones(i % 7), source=0)  # whose source runs ahead
            if i % 50 == 0:
                group.barrier()

    pools[4](many)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda group: group.send(torch.ones(1), to=2), "to=2: the ranks are 0 to 1"),
        (lambda group: group.send(torch.ones(1), to=group.rank), "that is this rank itself"),
        (lambda group: group.receive(torch.ones(1), source=-1), "source=-1: the ranks are 0 to 1"),
    ],
)
def test_a_wrong_peer_is_named(wrong, message):
    with pytest.raises(RankError, match=message):
        launch(wrong, ranks=2, device="cpu")
