"""ZeRO-1: memory and bytes by the formula, where numbers are, and what is refused."""

import copy

import pytest
import torch
from tests.rows import covering
from torch import nn

from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches
from distributed.workbench.memory_meter import watch
from distributed.workbench.training import make_network, train
from distributed.zero import Zero1, Zero2, Zero3

PSI = 64 * 128 + 128 + 2 * (128 * 128 + 128) + 128 * 10 + 10


def memory_of_rank(group, dtype):
    model = make_network(width=128, depth=3)
    zero = Zero1(model, torch.optim.Adam, group, param_dtype=dtype, reduce_dtype=dtype)
    return watch(model, zero, 16, 16).after["backward"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_memory_is_2_plus_2_plus_12_over_n(pools, ranks):
    for found in pools[ranks](memory_of_rank, torch.bfloat16):
        kept = {k: found[k] for k in ("parameters", "gradients", "master copy", "optimizer states")}
        assert sum(kept.values()) == pytest.approx((2 + 2 + 12 / ranks) * PSI, rel=1e-3)
        assert kept["master copy"] == pytest.approx(4 * PSI / ranks, rel=1e-3)
        assert set(found) - set(kept) <= {"data", "backward", "activations"}
        assert found.get("backward", 0) + found.get("activations", 0) < 1000, "no second gradient"


def test_memory_in_fp32_is_8_plus_8_over_n(pools):
    for found in pools[4](memory_of_rank, None):
        assert "master copy" not in found
        kept = sum(found[k] for k in ("parameters", "gradients", "optimizer states"))
        assert kept == pytest.approx((4 + 4 + 8 / 4) * PSI, rel=1e-3)


def named_after_reduce(group, stage):
    """Whether `tensors()` has each unit's dW[s], which isn't in the buckets' dtype."""
    model = nn.Linear(8, 8)
    zero = stage(model, torch.optim.SGD, group, lr=0.1, reduce_dtype=torch.bfloat16)
    model(torch.ones(2, 8)).sum().backward()
    zero.reduce()
    named = {tensor.data_ptr() for tensors in zero.tensors().values() for tensor in tensors}
    return [unit.gradient.data_ptr() in named for unit in zero.trained]


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
def test_the_reduced_gradient_is_named(pools, stage):
    assert pools[2](named_after_reduce, stage) == [[True]] * 2


def length_of_history(tensor):
    node, length = tensor.grad_fn, 0
    while node is not None:
        node, length = (node.next_functions or [(None, 0)])[0][0], length + 1
    return length


@pytest.mark.filterwarnings("ignore:Using backward")
def histories(group, stage):
    """Of what outlives a step, after steps with create_graph=True."""
    model = nn.Linear(4, 4)
    zero = stage(model, torch.optim.SGD, group, lr=0.01)
    for _ in range(3):
        model(torch.ones(2, 4)).square().sum().backward(create_graph=True)
        zero.step()
    return [length_of_history(t) for tensors in zero.tensors().values() for t in tensors]


@pytest.mark.parametrize("stage", [Zero1, Zero2])
def test_no_graph_outlives_its_step(pools, stage):
    for lengths in pools[2](histories, stage):
        assert lengths
        assert not any(lengths)


def sent_in(group, partition):
    rings = RingGroup(group)
    model = make_network(width=128, depth=3)
    zero = Zero1(model, torch.optim.Adam, rings, partition=partition)
    rings.trace = trace = Trace(group.rank)
    train(model, lambda: None, batches(1797, 8, 1), 8.0)
    before = trace.sent
    zero.step()
    return before, trace.sent - before, sum(unit.layout.shard_size for unit in zero.units)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partition", ["flat", "parameter"])
def test_a_step_sends_2_n_minus_1_shares_and_the_backward_pass_nothing(pools, ranks, partition):
    for before, sent, share in pools[ranks](sent_in, partition):
        assert before == 0
        assert sent == 2 * (ranks - 1) * share * 4
        if partition == "flat":
            assert share == -(-PSI // ranks)


def shards_of_rank(group, partition):
    model = make_network(seed=group.rank, width=9)
    weights = [{"params": [p for p in model.parameters() if p.dim() > 1]}]
    rest = [{"params": [p for p in model.parameters() if p.dim() < 2], "lr": 0.5}]
    zero = Zero1(
        model, torch.optim.SGD, group, param_groups=weights + rest, partition=partition,
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    train(model, zero.step, batches(1797, 8, 2), 8.0)
    found = []
    rates = {id(p): g["lr"] for g in zero.optimizer.param_groups for p in g["params"]}
    for mine in zero.local:
        momentum = zero.optimizer.state[mine.parameter]["momentum_buffer"].view(-1)
        for parameter, of, at in mine.pieces:
            assert torch.equal(mine.parameter.data.view(-1)[at], parameter.data.view(-1)[of])
            found.append((zero.names[parameter], of, momentum[at].clone()))
            assert rates[id(mine.parameter)] == (0.1 if parameter.dim() > 1 else 0.5)
    return found


@pytest.mark.parametrize("partition", ["flat", "parameter"])
def test_every_number_of_every_state_has_one_place(pools, partition):
    model = make_network(seed=0, width=9)
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 0.5},
        ],
        lr=0.1,
        momentum=0.9,
    )

    def step():
        optimizer.step()
        optimizer.zero_grad()

    train(model, step, batches(1797, 8, 2), 8.0)
    expected = {n: optimizer.state[p]["momentum_buffer"] for n, p in model.named_parameters()}
    left = {name: torch.zeros(p.numel()) for name, p in model.named_parameters()}
    for found in pools[3](shards_of_rank, partition):
        for name, of, momentum in found:
            left[name][of] += 1
            torch.testing.assert_close(momentum, expected[name].view(-1)[of], atol=1e-5, rtol=1e-4)
    assert all((count == 1).all() for count in left.values())


def test_more_ranks_than_numbers(pools):
    def tiny(group):
        model = nn.Linear(1, 1, bias=False)
        model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
        model.weight.data.fill_(3.0 + group.rank)
        zero = Zero1(model, torch.optim.Adam, group, lr=0.5)
        model(torch.ones(1, 1)).sum().backward()
        zero.step()
        return model.weight.item(), len(zero.local)

    results = pools[4](tiny)
    # Adam's first step is the learning rate, against the sign of the gradient.
    assert [weight for weight, _ in results] == [pytest.approx(2.5)] * 4
    assert [shards for _, shards in results] == [1, 0, 0, 0]


def test_buffers_and_frozen_parameters_come_from_rank_0(pools):
    def others(group):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[0].weight.requires_grad_(False).fill_(group.rank)
        model[1].running_mean.fill_(group.rank)
        Zero1(model, torch.optim.SGD, group, lr=1.0)
        return model[0].weight.sum().item(), model[1].running_mean.sum().item()

    assert pools[3](others) == [(0, 0)] * 3


def step_without_gradients(zero):
    zero.step()


def backward_after_clipping(zero):
    run(zero)
    zero.clip_grad_norm_(1.0)
    run(zero)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (step_without_gradients, r"step\(\) without any gradient on this rank: call backward"),
        (backward_after_clipping, r"step\(\) comes first"),
    ],
)
def test_calls_in_the_wrong_order_say_so(pools, wrong, message):
    def out_of_order(group):
        wrong(Zero1(make_network(width=8), torch.optim.SGD, group, lr=1.0))

    with pytest.raises(RankError, match=message):
        pools[2](out_of_order)


def run(zero):
    train(zero.module, lambda: None, batches(1797, 4, 1), 4.0)


def test_gradients_that_did_not_come_count_as_zero_and_old_ones_are_forgotten(pools):
    def two_heads(group):
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        zero = Zero1(model, torch.optim.SGD, group, lr=1.0)
        x = torch.ones(1, 2)
        (model[0](x) + model[1](x)).sum().backward()
        zero.step()
        before = copy.deepcopy(model)
        model[0](x).sum().backward()
        zero.step()
        moved = [(a - b).abs().max().item() for a, b in zip(
            model.parameters(), before.parameters(), strict=True)]  # fmt: skip
        return moved

    assert pools[2](two_heads) == [pytest.approx([1, 1, 0, 0])] * 2


STAGES = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}


def different(group, stage, what):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [{"params": [*model[0].parameters()]}, {"params": [*model[1].parameters()]}]
    if group.rank == 1:
        if what == "shape":
            model[1] = nn.Linear(2, 3)
            groups[1]["params"] = [*model[1].parameters()]
        if what == "dtype":
            model[0].double()
        if what == "missing":
            model[1].register_parameter("bias", None)
            groups[1]["params"].pop()
        if what == "frozen":
            model[0].bias.requires_grad_(False)
        if what == "group":
            groups.reverse()
    before = [p.detach().clone() for p in model.parameters()]
    try:
        STAGES[stage](model, torch.optim.SGD, group, param_groups=groups, lr=1.0)
    except ValueError:
        after = [p.detach() for p in model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        raise


@covering(
    stage=[*STAGES],
    what__message=[
        ("shape", r"1\.weight float32\[3, 2\] on rank 1, 1\.weight float32\[2, 2\] on rank 0"),
        ("dtype", r"0\.weight float64\[2, 2\] on rank 1, 0\.weight float32\[2, 2\] on rank 0"),
        ("missing", "rank 1 and rank 0 have different numbers of tensors"),
        ("frozen", r"0\.bias float32\[2\], frozen on rank 1, 0\.bias float32\[2\] on rank 0"),
        ("group", r"0\.weight, in group 1 on rank 1, 0\.weight, in group 0 on rank 0"),
    ],
)
def test_models_that_differ_are_refused_before_anything_is_written(pools, stage, what, message):
    with pytest.raises(RankError, match=message):
        pools[2](different, stage, what)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, parameter):
        return x * parameter

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def undefined(group, stage):
    model = nn.Linear(2, 2, bias=False)
    model.scale = nn.Parameter(torch.ones(2))
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    model.register_forward_hook(lambda m, x, y: NoGradient.apply(y, m.scale))
    model(torch.ones(1, 2)).sum().backward()
    zero.step()
    return {name: value.tolist() for name, value in zero.full_parameters()}["scale"]


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_a_gradient_that_stays_undefined_counts_as_zero(pools, stage):
    assert pools[2](undefined, stage) == [[1.0, 1.0]] * 2


def with_frozen_and_empty(group, stage):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model.nothing = nn.Parameter(torch.ones(0, 2))
    for i, parameter in enumerate(model.parameters()):
        parameter.data.fill_(i + 10 * group.rank)
    model[0].weight.requires_grad_(False)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    expected = {name: list(p.shape) for name, p in model.named_parameters()}
    found = {name: value.clone() for name, value in zero.full_parameters()}
    assert {name: list(value.shape) for name, value in found.items()} == expected
    return {name: value.unique().tolist() for name, value in found.items()}


@pytest.mark.parametrize("stage", STAGES)
def test_full_parameters_are_all_of_them_with_the_numbers_of_rank_0(pools, stage):
    expected = {"nothing": [], "0.weight": [1], "0.bias": [2], "1.weight": [3], "1.bias": [4]}
    assert pools[3](with_frozen_and_empty, stage) == [expected] * 3
