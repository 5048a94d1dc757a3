"""All-reduce in two levels: the sum, what leaves a host, and hosts that aren't full."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.runtime.arrays import COMBINE
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.two_levels import split_by_host, two_levels, two_levels_sent

HOSTS = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (5, 5), (6, 1), (6, 2), (6, 3), (6, 6)]
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int8"]


def reduce(group, arrays, per_host, dtype="float32", op="sum"):
    """One rank's result, and (elements, messages) that it sent inside its host and to others."""
    x = torch.from_numpy(arrays[group.rank]).to(getattr(torch, dtype))
    inside, between = split_by_host(group, per_host)
    inside.trace, between.trace = within, out = Trace(group.rank), Trace(group.rank)
    with inside, between:
        two_levels(inside, between, x, COMBINE[op])
    assert (within.handed_over, out.handed_over) == (0, 0), "only messages, no collective"
    sent = [(trace.sent / x.itemsize, trace.messages) for trace in (within, out)]
    return x.to(torch.float64).numpy(), sent


@given(
    hosts=st.sampled_from(HOSTS),
    n=st.one_of(st.integers(0, 20), st.integers(0, 3000)),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(["sum", "max", "product"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_result_is_numpys_and_the_messages_are_the_formulas(pools, hosts, n, dtype, op, seed):
    ranks, per_host = hosts
    # Sums and products of these are exact in every dtype, in any order.
    arrays = np.random.default_rng(seed).choice([-2, -1, 0, 1, 2], (ranks, n))
    results = pools[ranks](reduce, arrays, per_host, dtype, op)
    combine = {"sum": np.sum, "max": np.max, "product": np.prod}[op]
    for rank, (result, sent) in enumerate(results):
        np.testing.assert_array_equal(result, combine(arrays, axis=0))
        assert sent == [*two_levels_sent(n, rank, ranks, per_host)]


@pytest.mark.parametrize(("ranks", "per_host"), HOSTS)
def test_a_host_sends_twice_the_array_for_all_its_ranks_together(ranks, per_host):
    """2n(H − 1)/H if H divides the parts: as much as a ring with one rank on each host."""
    n, hosts = 60 * per_host, ranks // per_host
    sent = [two_levels_sent(n, rank, ranks, per_host) for rank in range(ranks)]
    for host in range(hosts):
        of_host = [out.elements for _, out in sent[host * per_host :][:per_host]]
        assert sum(of_host) == 2 * n * (hosts - 1) / hosts
        assert len({*of_host}) == 1, "every rank sends the same share"


@pytest.mark.parametrize("per_host", [1, 2, 3, 6])
def test_all_ranks_agree_to_the_bit_whatever_is_added(pools, per_host):
    arrays = np.random.default_rng(0).normal(size=(6, 1001)).astype("float32")
    results = [result for result, _ in pools[6](reduce, arrays, per_host)]
    assert all((result == results[0]).all() for result in results)
    # Each of at most five roundings is off by half a unit in the last place of the sum so far.
    bound = 5 * 2.0**-24 * abs(arrays.astype("float64")).sum(0) * 1.001
    assert (abs(results[0] - arrays.astype("float64").sum(0)) <= bound).all()


@pytest.mark.parametrize("per_host", [0, -2, 3, 8])
def test_hosts_that_are_not_full_are_refused(pools, per_host):
    message = f"per_host={per_host}: choose a divisor of the number of ranks, 4"
    with pytest.raises(ValueError, match=message):
        two_levels_sent(1000, 0, 4, per_host)
    with pytest.raises(RankError, match=message):
        pools[4](split_by_host, per_host)
