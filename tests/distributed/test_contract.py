"""What every kind of group promises: where results are, and in which dtype sums are made."""

import numpy as np
import pytest
import torch

from distributed.hierarchical import HierarchicalGroup
from distributed.ring_group import RingGroup
from distributed.shared_memory import SharedGroup

N = 4
KINDS = {
    "backend": lambda group: group,
    "ring": RingGroup,
    "shared": SharedGroup,
    "hierarchical": lambda group: HierarchicalGroup(group, 2),
}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def values() -> torch.Tensor:
    return torch.randn(N, 3001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def reduce(group, kind, dtype, op):
    x = values()[group.rank].to(dtype)
    before = x.data_ptr()
    result = KINDS[kind](group).all_reduce(x, op)
    assert result is x
    assert x.data_ptr() == before
    assert (x.dtype, x.device) == (dtype, group.device)
    return x


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_rounded_as_often_as_the_contract_says(pools, kind, dtype, op):
    given = values().to(dtype).double()
    exact = given.sum(0) / (N if op == "avg" else 1)
    size = given.abs().sum(0) / (N if op == "avg" else 1)
    # N − 1 sums, and a division: each off by half a unit in the last place of what is summed.
    bound = N * torch.finfo(dtype).eps / 2 * size + torch.finfo(torch.float64).eps * N * size
    found = pools[N](reduce, kind, dtype, op)
    assert all(torch.equal(one, found[0]) for one in found), "equal to the bit on every rank"
    assert ((found[0].double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_shared_memory_rounds_sixteen_bits_once(pools, dtype):
    exact = values().to(dtype).double().sum(0)
    found = pools[N](reduce, "shared", dtype, "sum")[0].double()
    one = torch.finfo(dtype).eps / 2 * exact.abs() + 1e-5
    assert ((found - exact).abs() <= one).all()


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_arrays_are_reduced_where_they_are(pools, kind):
    def of_numpy(group):
        x = np.full((2, 3), group.rank, "float32")
        assert KINDS[kind](group).all_reduce(x) is x
        return x

    for x in pools[N](of_numpy):
        assert x.dtype == np.float32
        assert (x == 6).all()
