"""Shards of parameters: whole, disjoint, in order, whatever the sizes."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distributed.zero.flat_unit import FlatUnit, Layout
from distributed.zero.sharded import layouts, local_parameters
from distributed.zero.sharding_plan import Precision, check_groups, check_optimizer, check_precision

shapes = st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=8)
partitions = st.sampled_from(["flat", "parameter"])


def parameters_of(shapes):
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


@given(shapes, st.integers(1, 9), partitions)
def test_every_element_has_one_owner_and_one_place(shapes, ranks, partition):
    parameters = parameters_of(shapes)
    layout = Layout(parameters, ranks, partition)
    flat = layout.write({p: p.data for p in parameters}, torch.full((layout.size,), 7.0))
    left = {p: torch.zeros(p.numel()) for p in parameters}
    used = torch.zeros(layout.size)
    for rank in range(ranks):
        shard = layout.shard(flat, rank)
        for p, of, at in layout.pieces(rank):
            assert torch.equal(shard[at], p.data.view(-1)[of])
            left[p][of] += 1
            used[rank * layout.shard_size :][at] += 1
            if partition == "parameter":
                assert of == slice(0, p.numel())
    assert all((count == 1).all() for count in left.values())
    assert used.max() == 1
    assert (flat[used == 0] == 0).all(), "padding is zero"
    for p, view in layout.views(flat).items():
        assert torch.equal(view, p)


@given(shapes, st.integers(1, 9))
def test_flat_shards_have_less_than_one_element_of_padding_a_rank(shapes, ranks):
    layout = Layout(parameters_of(shapes), ranks)
    assert 0 <= layout.size - layout.numel < ranks


@given(shapes, st.integers(1, 9))
def test_whole_parameters_are_shared_out_within_the_bound_of_list_scheduling(shapes, ranks):
    """Graham 1966: the longest load is at most the average plus (1 − 1/N) of the largest item."""
    layout = Layout(parameters_of(shapes), ranks, "parameter")
    largest = max(p.numel() for p in layout.parameters)
    assert max(-(-layout.numel // ranks), largest) <= layout.shard_size
    assert layout.shard_size <= layout.numel / ranks + (1 - 1 / ranks) * largest + 1e-9


def plan_of(parameters, ranks, groups):
    """As a `ShardingPlan`, of these parameters."""
    group = SimpleNamespace(rank=0, size=ranks, device=torch.device("cpu"))
    group_of = {p: groups[i % len(groups)] for i, p in enumerate(parameters) if p.requires_grad}
    return SimpleNamespace(group=group, group_of=group_of, partition="flat", precision=Precision())


@given(shapes, st.integers(1, 9), st.lists(st.integers(0, 1), min_size=1, max_size=3))
def test_an_optimizers_parameter_is_one_run_of_one_group(shapes, ranks, groups):
    plan = plan_of(parameters_of(shapes), ranks, groups)
    for layout in layouts(plan, [*plan.group_of]):
        flat = layout.write({p: p.data for p in layout.parameters}, torch.empty(layout.size))
        for plan.group.rank in range(ranks):
            unit = FlatUnit(layout, plan.group, layout.shard(flat, plan.group.rank))
            found = [*local_parameters(unit, plan)]
            assert [p for mine in found for p, *_ in mine.pieces] == [
                p for p, *_ in layout.pieces(plan.group.rank)
            ]
            for mine in found:
                assert {plan.group_of[p] for p, *_ in mine.pieces} == {mine.group}
                for p, of, at in mine.pieces:
                    assert torch.equal(mine.parameter.data.view(-1)[at], p.data.view(-1)[of])
            assert all(one.group != other.group for one, other in pairwise(found))


def test_buckets_hold_one_dtype_and_stay_within_their_size():
    shapes = [(10,), (10,), (3,), (0,), (50,), (10,)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters.append(nn.Parameter(torch.zeros(4, dtype=torch.float64)))
    parameters.append(nn.Parameter(torch.zeros(4), requires_grad=False))
    plan = plan_of(parameters, 2, [0])
    found = layouts(plan, parameters, 92)
    assert [(layout.dtype, layout.trainable, layout.numel) for layout in found] == [
        (torch.float32, True, 23),
        (torch.float32, True, 50),  # larger than a unit may be: alone
        (torch.float32, True, 10),
        (torch.float64, True, 4),
        (torch.float32, False, 4),
    ]
    with pytest.raises(ValueError, match="bucket_bytes=0"):
        layouts(plan, parameters, 0)


def test_groups_must_hold_each_trained_parameter_once():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = {p: name for name, p in module.named_parameters()}
    module[1].bias.requires_grad_(False)
    first, last = [*module[0].parameters()], [module[1].weight]
    groups = [{"params": iter(first), "lr": 1.0}, {"params": last}]
    assert check_groups(names, groups) == [{"params": first, "lr": 1.0}, {"params": last}]
    with pytest.raises(ValueError, match=r"param_groups: 1\.weight is in none"):
        check_groups(names, [{"params": first}])
    with pytest.raises(ValueError, match=r"param_groups: 0\.weight is in two"):
        check_groups(names, [{"params": first}, {"params": [*last, first[0]]}])
    with pytest.raises(ValueError, match="all of them the module's"):
        check_groups(names, [{"params": [nn.Parameter(torch.ones(1))]}])
    frozen = {p.requires_grad_(False): name for p, name in names.items()}
    with pytest.raises(ValueError, match="nothing is to be trained"):
        check_groups(frozen, None)


def test_optimizers_that_cannot_work_on_shards_are_refused():
    for known in ("SGD", "AdamW", "RMSprop", "Adadelta"):
        check_optimizer(getattr(torch.optim, known), "flat")
    with pytest.raises(ValueError, match="give partition='parameter'"):
        check_optimizer(torch.optim.Adafactor, "flat")
    check_optimizer(torch.optim.Adafactor, "parameter")
    for partition in ("flat", "parameter"):
        with pytest.raises(ValueError, match="LBFGS: it needs all parameters at once"):
            check_optimizer(torch.optim.LBFGS, partition)
    with pytest.raises(ValueError, match="partition='rows': choose one of flat, parameter"):
        check_optimizer(torch.optim.SGD, "rows")


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"param_dtype": torch.int8}, r"param_dtype=torch\.int8: give a dtype of floats"),
        ({"reduce_dtype": "bf16"}, r"reduce_dtype='bf16': give a dtype of floats"),
        ({"param_dtype": torch.bfloat16}, "give the module in float32"),
    ],
)
def test_a_precision_that_makes_no_sense_is_refused_in_a_line(dtypes, message):
    with pytest.raises(ValueError, match=message) as said:
        check_precision(nn.Linear(2, 2).half(), Precision(**dtypes))
    assert "\n" not in str(said.value)
