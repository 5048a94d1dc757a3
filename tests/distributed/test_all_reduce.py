"""All-reduce by six algorithms: the result, the bytes, and that all ranks agree to the bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pools import launch_with_clock

from distributed import all_reduce as all_reduce_module
from distributed.all_reduce import PIECE, bounds
from distributed.instruments.algorithms import ALGORITHMS, SENT, all_reduce
from distributed.launching import launch
from distributed.runtime import transport
from distributed.runtime.group import Group
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.trees import children, double_tree_sent, links, parent
from distributed.workbench.measure import count

NUMPY = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "product": np.prod}


def in_many_messages(group):
    """A ring's sum whose parts are cut into more messages than there are buffers for."""
    piece, ahead = all_reduce_module.PIECE, transport.AHEAD
    all_reduce_module.PIECE, transport.AHEAD = 10, 1
    try:
        x = torch.arange(4000.0) * (group.rank + 1)
        return all_reduce(group, x, "sum", "ring")
    finally:
        all_reduce_module.PIECE, transport.AHEAD = piece, ahead


@pytest.mark.parametrize("ranks", [2, 4])
def test_no_message_overwrites_one_that_is_still_to_be_added(pools, ranks):
    expected = torch.arange(4000.0) * sum(range(1, ranks + 1))
    for found in pools[ranks](in_many_messages):
        assert torch.equal(found, expected)


def traced(group, arrays, op, algorithm, library, async_op=False):
    mine = arrays[group.rank, ...]
    mine = torch.from_numpy(mine) if library == "torch" else mine
    group.trace = trace = Trace(group.rank)
    returned = all_reduce(group, mine, op, algorithm, async_op)
    returned = returned.wait() if async_op else returned
    group.trace = None
    assert returned is mine
    return np.asarray(mine), trace


@given(
    ranks=st.integers(1, 8),
    n=st.one_of(st.integers(0, 20), st.integers(0, 3000)),
    algorithm=st.sampled_from([*ALGORITHMS]),
    op=st.sampled_from([*NUMPY]),
    dtype=st.sampled_from(["float64", "float32", "float16", "int64", "int32"]),
    library=st.sampled_from(["numpy", "torch"]),
    async_op=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_result_is_numpys_and_the_bytes_are_the_formulas(
    pools, ranks, n, algorithm, op, dtype, library, async_op, seed
):
    if op == "avg" and dtype.startswith("int"):
        op = "sum"
    # Powers of two and small integers: every order of summing gives the same number exactly.
    values = [1, 2, 0.5] if op == "product" and dtype.startswith("float") else [-2, -1, 0, 1, 2]
    arrays = np.random.default_rng(seed).choice(values, (ranks, n)).astype(dtype)
    results = pools[ranks](traced, arrays, op, algorithm, library, async_op)
    expected = NUMPY[op](arrays.astype("float64"), axis=0)
    for rank, (result, trace) in enumerate(results):
        assert result.dtype == dtype
        if op == "avg":
            np.testing.assert_allclose(result, expected, rtol=1e-3)
        else:
            np.testing.assert_array_equal(result, expected)
        assert (trace.sent / arrays.itemsize, trace.messages) == SENT[algorithm](n, rank, ranks)
        assert trace.handed_over == 0, "only messages: no collective of the backend"
    assert sum(trace.sent for _, trace in results) == sum(t.received for _, t in results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_all_ranks_agree_to_the_bit_whatever_is_added(pools, ranks, algorithm):
    arrays = np.random.default_rng(0).normal(size=(ranks, 1001)).astype("float32")
    results = [result for result, _ in pools[ranks](traced, arrays, "sum", algorithm, "numpy")]
    for result in results:
        assert result.tobytes() == results[0].tobytes()
    # n additions of float32: each rounds by at most half a unit in the last place of the sum
    bound = 2.0**-24 * ranks * abs(arrays.astype("float64")).sum(0)
    assert (abs(results[0] - arrays.astype("float64").sum(0)) <= bound).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bf16_and_arrays_with_gaps(pools, algorithm):
    def reduce_columns(group, algorithm):
        whole = torch.full((4, 6), float(group.rank + 1), dtype=torch.bfloat16)
        all_reduce(group, whole[:, ::2], "sum", algorithm)
        return whole.float().numpy()

    for rank, whole in enumerate(pools[3](reduce_columns, algorithm)):
        assert (whole[:, ::2] == 6).all()
        assert (whole[:, 1::2] == rank + 1).all()


ROUNDINGS = {  # a number goes through at most so many, on N ranks
    "central": lambda n: n - 1,
    "naive": lambda n: n - 1,
    "tree": lambda n: (n - 1).bit_length(),
    "ring": lambda n: n - 1,
    "halving_doubling": lambda n: (n - 1).bit_length(),
    "double_tree": lambda n: 2 * (n - 1).bit_length(),
}


@pytest.mark.parametrize("ranks", [5, 8])
def test_sums_are_made_in_the_dtype_of_the_array(pools, ranks):
    """k roundings, each of at most half a unit in the last place of what was added so far."""
    arrays = torch.randn(ranks, 1000, dtype=torch.float64)
    dtypes = [torch.float16, torch.bfloat16, torch.float32]

    def every_way(group, arrays):
        for dtype in dtypes:
            for name in ALGORITHMS:
                yield dtype, name, all_reduce(group, arrays[group.rank].to(dtype), "sum", name)

    for dtype, name, found in pools[ranks](lambda *given: [*every_way(*given)], arrays)[0]:
        given = arrays.to(dtype).double()
        k_half_units = ROUNDINGS[name](ranks) * torch.finfo(dtype).eps / 2
        bound = k_half_units / (1 - k_half_units) * given.abs().sum(0)
        assert ((found.double() - given.sum(0)).abs() <= bound).all(), (dtype, name)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [*(pytest.param(n, marks=pytest.mark.slow) for n in (9, 16)), 13])
def test_up_to_sixteen_ranks(pools, algorithm, ranks):
    arrays = np.random.default_rng(1).integers(-9, 9, (ranks, 37))
    results = pools[ranks](traced, arrays, "sum", algorithm, "numpy")
    for rank, (result, trace) in enumerate(results):
        assert (result == arrays.sum(0)).all()
        assert (trace.sent / 8, trace.messages) == SENT[algorithm](37, rank, ranks)


@pytest.mark.slow
def test_thirty_two_ranks():
    def every_algorithm(group):
        return [traced(group, np.eye(32, 5, dtype="int64"), "sum", a, "numpy") for a in ALGORITHMS]

    for rank, of_rank in enumerate(launch(every_algorithm, ranks=32, device="cpu")):
        for algorithm, (result, trace) in zip(ALGORITHMS, of_rank, strict=True):
            assert (result == 1).all()
            assert (trace.sent / 8, trace.messages) == SENT[algorithm](5, rank, 32)


def in_batches(group, algorithm, n):
    group = Group(torch.device("cuda"), None, 1, group.backend)  # as if: there may be no GPU
    x = torch.arange(n) * (group.rank + 1)
    group.trace = trace = Trace(group.rank)
    all_reduce(group, x, algorithm=algorithm)
    return x.tolist(), (trace.sent // x.itemsize, trace.messages)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_batches_as_nccl_wants_them_the_same_messages_are_sent(pools, ranks, algorithm):
    n = 13
    expected = [i * ranks * (ranks + 1) // 2 for i in range(n)]
    for rank, (total, sent) in enumerate(pools[ranks](in_batches, algorithm, n)):
        assert total == expected
        assert sent == SENT[algorithm](n, rank, ranks)


@pytest.mark.parametrize("algorithm", ["ring", "double_tree"])
def test_long_arrays_go_in_several_messages_and_those_are_counted(pools, algorithm):
    n = 3 * PIECE + 5

    def count_long(group, algorithm, n):
        return count(group, n, ALGORITHMS[algorithm])

    counted = pools[2](count_long, algorithm, n)
    assert counted == [SENT[algorithm](n, rank, 2) for rank in range(2)]
    assert counted[0][1] > SENT[algorithm](5, 0, 2).messages


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_ring_and_halving_doubling_send_the_least_there_is(ranks):
    """2n(N − 1)/N for each rank, where N divides n: Patarasuk and Yuan's lower bound."""
    n = 16 * 25
    for algorithm in ("ring", "halving_doubling"):
        sent = {SENT[algorithm](n, rank, ranks).elements for rank in range(ranks)}
        assert sent == {2 * n * (ranks - 1) // ranks}


@given(n=st.integers(0, 500), parts=st.integers(1, 40))
def test_parts_cover_all_and_differ_by_one_at_most(n, parts):
    cut = bounds(n, parts)
    lengths = np.diff(cut)
    assert (cut[0], cut[-1], len(lengths)) == (0, n, parts)
    assert lengths.max() - lengths.min() <= 1


@given(ranks=st.integers(1, 70))
def test_every_rank_but_0_is_the_child_of_exactly_one(ranks):
    below = [child for rank in range(ranks) for child in children(rank, ranks)]
    assert sorted(below) == [*range(1, ranks)]
    assert all(rank in children(parent(rank), ranks) for rank in below)


@given(ranks=st.integers(1, 70))
def test_the_two_trees_share_the_work(ranks):
    for tree in (0, 1):
        above = {rank: links(rank, ranks, tree)[0] for rank in range(ranks)}
        (root,) = [rank for rank in range(ranks) if above[rank] is None]
        for rank in range(ranks):
            path, at = 0, rank
            while at != root:
                path, at = path + 1, above[at]
            assert path <= np.ceil(np.log2(ranks)), "few steps"
            assert all(above[child] == rank for child in links(rank, ranks, tree)[1])
            assert len(links(rank, ranks, tree)[1]) <= 2
    most = max(double_tree_sent(1000, rank, ranks).elements for rank in range(ranks))
    assert most <= 2000, "no rank sends more than twice its array"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "star"},
            "choose one of central, naive, tree, ring, halving_doubling, double_tree",
        ),
        ({"op": "max", "dtype": "complex64"}, "op='max': complex numbers have no order"),
        ({"op": "mean"}, "op='mean': choose one of sum, avg"),
        ({"op": "avg"}, "op='avg' needs floating-point numbers, x has torch.int64"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(pools, options, message):
    def try_it(group, options):
        x = np.arange(3).astype(options.pop("dtype", "int64"))
        try:
            all_reduce(group, x, **options)
        except ValueError as error:
            return str(error), x.tolist()

    for said, x in pools[2](try_it, options):
        assert message in said
        assert x == [0, 1, 2]


@pytest.mark.parametrize("async_op", [False, True])
def test_different_arrays_on_different_ranks_are_named(async_op):
    def misfit(group):
        all_reduce(group, torch.zeros(3 + group.rank), async_op=async_op)

    with pytest.raises(RankError, match="different collectives") as error:
        launch_with_clock(misfit, ranks=2, timeout=20)
    for call in ("all_reduce sum by ring of float32[3]", "all_reduce sum by ring of float32[4]"):
        assert call in str(error.value)
