"""ZeRO-1, 2 and 3 against PyTorch on one device, on the whole batch."""

import contextlib
import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import covering
from torch import nn
from torch.utils.checkpoint import checkpoint

from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from distributed.shared_memory import SharedGroup
from distributed.workbench.data import batches
from distributed.workbench.training import make_network, train
from distributed.zero import Zero1, Zero2, Zero3

STAGES = {
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "zero3, no prefetch": partial(Zero3, prefetch=False),
    "zero3, kept after forward": partial(Zero3, reshard_after_forward=False),
}
GROUPS = {"gloo": lambda group: group, "ring": RingGroup, "shared": SharedGroup}
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.05}),  # looks at rows and columns of a matrix
}
ELEMENTWISE = [name for name in OPTIMIZERS if name != "adafactor"]
# Sums in another order, carried through a few steps of an optimizer that divides by their roots:
# RMSprop makes a step of full length out of a gradient that is nearly zero.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


class Network(nn.Module):
    """Blocks of sizes that no rank count divides, a tied and a frozen parameter, one of size 1."""

    def __init__(self, widths, seed, frozen=True):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Linear(3, widths[0])
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.Tanh())
            for a, b in zip(widths, [*widths[1:], widths[0]], strict=True)
        )
        self.scale = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.ones(0))
        self.tied = nn.Linear(3, widths[0], bias=False)
        self.tied.weight = self.embed.weight
        self.blocks[0][0].bias.requires_grad_(not frozen)
        self.again = False  # compute the blocks' activations twice

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return (x * self.scale) @ self.tied.weight


def groups_of(module):
    """No weight decay for vectors: groups that alternate from parameter to parameter."""
    trained = [p for p in module.parameters() if p.requires_grad]
    flat = {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0, "lr": 0.02}
    return [{"params": [p for p in trained if p.dim() >= 2]}, flat]


def loss_of(module, x, y):
    return (module(x) - y).square().sum()


def alone(network, x, y, optimizer, use_groups, clip, micro, steps):
    optimizer_class, options = OPTIMIZERS[optimizer]
    model = copy.deepcopy(network)
    opt = optimizer_class(groups_of(model) if use_groups else model.parameters(), **options)
    for _ in range(steps):
        (loss_of(model, x, y) / (len(x) * micro) * micro).backward()
        trained = [p for p in model.parameters() if p.grad is not None]
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        opt.step()
        opt.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def together(group, stage, kind, network, x, y, optimizer, use_groups, clip, micro, steps, options):
    group = GROUPS[kind](group)
    optimizer_class, defaults = OPTIMIZERS[optimizer]
    model = copy.deepcopy(network)
    if group.rank:  # only rank 0 has the right weights
        for tensor in model.parameters():
            tensor.data.add_(1)
    zero = STAGES[stage](
        model, optimizer_class, group,
        param_groups=groups_of(model) if use_groups else None, **options, **defaults,
    )  # fmt: skip
    mine = np.array_split(np.arange(len(x)), group.size)[group.rank]
    for _ in range(steps):
        for rows in np.array_split(mine, micro):
            (loss_of(model, x[rows], y[rows]) * group.size / len(x)).backward()
        if clip:
            zero.clip_grad_norm_(clip)
        zero.step()
    found = {name: value.clone() for name, value in zero.full_parameters()}
    assert all(p.grad is None for p in model.parameters())
    return found, sum(t.numel() for t in zero.tensors()["optimizer states"])


def assert_equal(results, expected, dtype):
    for found, _ in results:
        for name, value in found.items():
            bound = TOLERANCE[dtype] * max([1.0, *expected[name].abs().flatten().tolist()])
            torch.testing.assert_close(value, expected[name], rtol=0, atol=bound, msg=name)
            assert torch.equal(value, results[0][0][name]), "ranks differ"


@given(
    ranks=st.integers(1, 8),
    stage=st.sampled_from([*STAGES]),
    kind=st.sampled_from([*GROUPS]),
    optimizer=st.sampled_from(ELEMENTWISE),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    use_groups=st.booleans(),
    clip=st.sampled_from([None, 0.5]),
    micro=st.integers(1, 3),
    partition=st.sampled_from(["flat", "parameter"]),
    bucket_bytes=st.sampled_from([1, 300, 10**6]),
    frozen=st.booleans(),
    again=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_weights_are_those_of_one_device(
    pools, ranks, stage, kind, optimizer, widths, use_groups, clip, micro, partition, bucket_bytes,
    frozen, again, dtype, seed,
):  # fmt: skip
    network = Network(widths, seed, frozen).to(dtype)
    network.again = again
    x = torch.randn(ranks * micro + 5, 3, dtype=dtype)
    y = torch.randn(len(x), 3, dtype=dtype)
    how = optimizer, use_groups, clip, micro, 3
    expected = alone(network, x, y, *how)
    options = {"partition": partition}
    if not stage.startswith("zero3"):
        options["bucket_bytes"] = bucket_bytes
    results = pools[ranks](together, stage, kind, network, x, y, *how, options)
    assert_equal(results, expected, dtype)
    assert all(found.keys() == expected.keys() for found, _ in results)


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_an_optimizer_that_sees_matrices_gets_whole_ones(pools, stage):
    network = Network([5, 8, 3], seed=2).double()
    x, y = torch.randn(2, 11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    how = "adafactor", True, 0.5, 1, 3
    results = pools[3](
        together, stage, "gloo", network, x, y, *how, {"partition": "parameter"}
    )  # fmt: skip
    assert_equal(results, alone(network, x, y, *how), torch.float64)


HALF = {"lr": 1e-3, "weight_decay": 0.1}


def half_with_master_alone():
    """Two ranks' bf16 gradients, averaged in float32; AdamW on float32 copies: weights, copies."""
    model = make_network(width=11, depth=3)
    copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    parameters = [*model.bfloat16().parameters()]
    optimizer = torch.optim.AdamW(copies, **HALF)
    for rows in batches(1797, 24, 4):
        found = []
        for rank in range(2):
            train(model, lambda: None, [rows[rank::2]], 12)
            found.append([p.grad for p in parameters])
            model.zero_grad()
        for copy_, a, b in zip(copies, *found, strict=True):
            copy_.grad = (a.float() + b.float()) / 2
        optimizer.step()
        for p, copy_ in zip(parameters, copies, strict=True):
            p.data.copy_(copy_)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, parameters, strict=True)), dict(zip(names, copies, strict=True))


def half_with_master(group, stage):
    model = make_network(seed=group.rank, width=11, depth=3)
    zero = STAGES[stage](model, torch.optim.AdamW, group, param_dtype=torch.bfloat16, **HALF)
    for rows in batches(1797, 24, 4):
        train(model, zero.step, [rows[group.rank :: 2]], 12)
    copies = [
        (
            zero.names[piece.parameter],
            piece.param_slice,
            mine.parameter.data.view(-1)[piece.local_slice].clone(),
        )
        for mine in zero.local
        for piece in mine.pieces
    ]
    seen = {name: p.data.clone() for name, p in model.named_parameters()}
    return seen, {name: value.clone() for name, value in zero.full_parameters()}, copies


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_half_precision_with_a_master_copy_learns_what_one_device_learns(pools, stage):
    weights, copies = half_with_master_alone()
    lost = max((copies[k] - weights[k]).abs().max().item() for k in weights)
    assert lost > 1e-4, "without copies more would be lost than the test allows"
    for seen, found, pieces in pools[2](half_with_master, stage):
        assert all(p.dtype == torch.bfloat16 for p in seen.values())
        for name, of, piece in pieces:
            expected = copies[name].data.view(-1)[of]
            torch.testing.assert_close(piece, expected, rtol=0, atol=2e-5)
            assert torch.equal(found[name].view(-1)[of], piece), name
            if stage != "zero3":  # whose module holds no values between steps
                assert torch.equal(seen[name].view(-1)[of], piece.bfloat16()), name


MICRO = 512


def of_many_micro_batches(group, stage, dtypes, quiet):
    """Gradients of 1/512 each, from 0: in bf16 their sum stays at 0.5 of 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0, **dtypes)
    x = torch.ones(1, 1, dtype=dtypes.get("param_dtype"))
    with zero.no_sync() if quiet else contextlib.nullcontext():
        for _ in range(MICRO - 1):
            (model(x).sum() / MICRO).backward()
    (model(x).sum() / MICRO).backward()
    zero.step()
    return {name: value.item() for name, value in zero.full_parameters()}["weight"]


@covering(stage=["zero1", "zero2", "zero3"], quiet={"each reduced": False, "no_sync": True})
def test_micro_batches_are_added_up_in_float32(pools, stage, quiet):
    for dtypes in ({}, {"param_dtype": torch.bfloat16}):
        assert pools[2](of_many_micro_batches, stage, dtypes, quiet) == [-1.0] * 2
    lost = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
    sums_in_16_bits = quiet or stage == "zero1"  # else each is added to a shard of 32 bits
    assert (
        pools[2](of_many_micro_batches, stage, lost, quiet)
        == [-0.5 if sums_in_16_bits else -1.0] * 2
    )


def sum_of_ones(group, stage, quiet):
    model = nn.Linear(1, 1, bias=False)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0, reduce_dtype=torch.bfloat16)
    with zero.no_sync() if quiet else contextlib.nullcontext():
        for _ in range(400):
            model(torch.ones(1, 1)).sum().backward()
    return next(zero.full_gradients())[1].item()


@covering(stage=["zero1", "zero2", "zero3"], quiet={"each reduced": False, "no_sync": True})
def test_400_ones_are_256_in_bfloat16_unless_each_is_reduced(pools, stage, quiet):
    in_16_bits = quiet or stage == "zero1"
    assert pools[2](sum_of_ones, stage, quiet) == [256 if in_16_bits else 400] * 2


def sent_by_rank(group, stage, dtypes):
    ring = RingGroup(group)
    model = make_network(width=8)
    zero = STAGES[stage](model, torch.optim.SGD, ring, lr=0.1, **dtypes)
    ring.trace = trace = Trace(group.rank)
    train(model, zero.step, batches(1797, 8, 1), 8.0)
    return trace.sent, sum(unit.layout.shard_size for unit in zero.units)


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_parameters_travel_in_param_dtype_and_gradients_in_reduce_dtype(pools, stage):
    for reduce_dtype, width in ((None, 4), (torch.bfloat16, 2)):
        dtypes = {"param_dtype": torch.bfloat16, "reduce_dtype": reduce_dtype}
        for sent, shards in pools[3](sent_by_rank, stage, dtypes):
            assert sent == 2 * shards * (2 + width)


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_frozen_parameters_are_computed_with_in_param_dtype(pools, stage):
    def outputs(group):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].requires_grad_(False)
        x = torch.randn(2, 4).bfloat16()
        expected = copy.deepcopy(model).bfloat16()(x)
        STAGES[stage](model, torch.optim.SGD, group, lr=1.0, param_dtype=torch.bfloat16)
        return torch.equal(model(x), expected)

    assert pools[2](outputs) == [True] * 2


def clip_once(group, stage, length, max_norm, dtype=torch.float32):
    """The norm that clipping returns, and by what SGD with rate 1 then changes the weight."""
    model = nn.Linear(2, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    x = torch.tensor([[0.6, 0.8]]) * length * (1 + group.rank) / 1.5  # mean over ranks: length
    x = x.to(dtype)
    model(x).sum().backward()
    norm = zero.clip_grad_norm_(max_norm).item()
    zero.step()
    ((_, weight),) = zero.full_parameters()
    return norm, -weight.flatten()


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_the_norm_of_a_float16_gradient_is_added_up_in_float32(pools, stage):
    for norm, change in pools[2](clip_once, stage, 1000.0, 1.0, torch.float16):
        assert norm == pytest.approx(1000.0, rel=1e-2)
        assert change.norm().item() == pytest.approx(1.0, rel=1e-2)


def norm_of_two_dtypes(group, stage, dtypes):
    """Of gradients 3e30 and 4e30 in float64, where float32 has no squares, and 0 in float32."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in dtypes)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    gradients = torch.tensor([3e30, 4e30], dtype=torch.float64)
    for parameter in model:
        wide = parameter.dtype is torch.float64
        (parameter * (gradients if wide else 0)).sum().backward()
    return zero.clip_grad_norm_(1.0).item()


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_the_norm_is_added_up_in_the_widest_dtype(pools, stage):
    for dtypes in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        assert pools[2](norm_of_two_dtypes, stage, dtypes) == pytest.approx([5e30] * 2)


@pytest.mark.parametrize("length", [1e-4, 0.5, 4.0])
@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_clipping_shortens_long_gradients_and_leaves_short_ones_alone(pools, stage, length):
    for norm, change in pools[2](clip_once, stage, length, 1.0):
        assert norm == pytest.approx(length, rel=1e-5)
        expected = torch.tensor([0.6, 0.8]) * min(length, 1.0)
        torch.testing.assert_close(change, expected, rtol=1e-5, atol=0)


def bytes_sent_after_an_inner_no_sync(group):
    rings = RingGroup(group)
    model = nn.Linear(2, 1)
    zero = Zero2(model, torch.optim.SGD, rings, lr=1.0)
    rings.trace = trace = Trace(group.rank)
    with zero.no_sync():
        with zero.no_sync():
            pass
        model(torch.ones(1, 2)).sum().backward()
    return trace.sent


def test_no_sync_in_no_sync_ends_with_the_outer_one(pools):
    assert pools[2](bytes_sent_after_an_inner_no_sync) == [0, 0]
