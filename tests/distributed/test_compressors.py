"""Compressed averages: bytes by the formula, what is kept for later, both DDPs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distributed.compressors import (
    Cast,
    Gradients,
    RandomK,
    TopK,
    hook,
    torch_hook,
)
from distributed.ddp import DistributedDataParallel
from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.sign_and_low_rank import PowerSGD, Sign, descend, elements_to_send, pack, unpack

N = 1000
COMPRESSORS = {
    "bf16": lambda memory: Cast(torch.bfloat16),
    "top": lambda memory: TopK(0.05, memory),
    "random": lambda memory: RandomK(0.05, memory),
    "sign": lambda memory: Sign(memory),
    "power": lambda memory: PowerSGD(2, memory),
}


@given(st.lists(st.booleans(), max_size=70))
def test_bits_come_back(bits):
    tensor = torch.tensor(bits, dtype=torch.bool)
    packed = pack(tensor)
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-len(bits) // 8)
    assert torch.equal(unpack(packed, len(bits)), tensor)


def sent_alone(group, name):
    """What comes on one rank, and what it says that it sent, of numbers of which some are 0."""
    x = torch.tensor([3.0, 0.0, -1.0, 0.0, 2.0, -0.0, -4.0, 1.0])
    return COMPRESSORS[name](True).send(RingGroup(group), x)


@pytest.mark.parametrize("name", ["top", "random", "sign"])
def test_what_a_rank_remembers_as_sent_is_what_comes(pools, name):
    ((came, sent),) = pools[1](sent_alone, name)
    assert torch.equal(came, sent)


def gradient_of(rank, shape=(40, 25)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def average_in(group, name, memory, steps):
    """All averages of the same gradients, step by step, and bytes of the last."""
    rings, compressor = RingGroup(group), COMPRESSORS[name](memory)
    parameter, found = torch.zeros(40, 25), []
    for _ in range(steps):
        x = gradient_of(group.rank)
        rings.trace = trace = Trace(group.rank)
        compressor.average(rings, Gradients(x.view(-1), [x], [parameter]))
        found.append(x)
    return found, trace.sent


def average_after_an_inf(group, name):
    """Which of five steps had a finite average, where one rank's first gradient has an inf."""
    compressor, parameter, found = COMPRESSORS[name](True), torch.zeros(40, 25), []
    for step in range(5):
        x = gradient_of(group.rank)
        if step == group.rank == 0:
            x[3, 3] = torch.inf
        compressor.average(group, Gradients(x.view(-1), [x], [parameter]))
        found.append(x.isfinite().all().item())
    return found


@pytest.mark.parametrize("name", ["top", "random", "sign", "power"])
def test_an_inf_is_not_remembered(pools, name):
    for found in pools[2](average_after_an_inf, name):
        assert all(found[1:])
        assert not found[0] or name == "random", "which has not drawn that place"


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [*COMPRESSORS])
def test_bytes_are_those_of_the_formula_and_ranks_agree(pools, name, ranks):
    around = 2 * (ranks - 1) / ranks
    expected = {
        "bf16": 2 * N * around,
        "top": 8 * 50 * (ranks - 1),
        "random": 4 * 50 * around,
        "sign": (N // 8 + 4) * (ranks - 1),
        "power": 4 * elements_to_send([(40, 25)], 2) * around,
    }[name]
    results = pools[ranks](average_in, name, True, 2)
    for found, sent in results:
        assert abs(sent - expected) <= 2 * 2 * 4 * ranks  # a ring's parts differ by a number
        assert all(torch.equal(a, b) for a, b in zip(found, results[0][0], strict=True))


@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("top", "random")), "sign", "power"]
)
def test_with_error_feedback_nothing_is_lost_for_ever(pools, name):
    """The sum over T steps is T times the mean, but for an error that does not grow with T."""
    mean = sum(gradient_of(rank) for rank in range(3)) / 3

    def off(memory, steps):
        found, _ = pools[3](average_in, name, memory, steps)[0]
        return ((sum(found) - steps * mean).norm() / (steps * mean.norm())).item()

    assert off(True, 120) < off(True, 30) * 0.7
    if name != "random":  # which is right on average, one step in twenty
        assert off(False, 120) > off(False, 30) * 0.9


@pytest.mark.slow
def test_only_without_error_feedback_one_bit_diverges(pools):
    whole, kept, lost = (
        pools[4](descend, compressor)[0] for compressor in (None, Sign(), Sign(False))
    )
    # x shrinks by 1 − 0.1/4 a step and y by 1 − 0.1: on one device, by hand.
    assert whole == pytest.approx(
        [((1 - 0.025) ** (2 * t) + 0.9 ** (2 * t)) ** 0.5 for t in range(1, 201)], rel=1e-3
    )
    assert kept[-1] < 0.02
    assert lost[-1] > 10
    with pytest.raises(RankError, match="2 ranks: this problem is one for 4"):
        pools[2](descend, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_in_16_bits_rounds_and_does_not_overflow(pools, dtype):
    def large(group):
        x = torch.full((4,), 30_000.0)
        Cast(dtype).average(group, Gradients(x, [x], [x]))
        return x.tolist()

    assert pools[4](large)[0] == pytest.approx([30_000] * 4, rel=0.01)


def test_powersgd_is_exact_where_the_rank_is_enough(pools):
    def low_rank(group):
        generator = torch.Generator().manual_seed(5)
        left, right = (
            torch.randn(30, 2, generator=generator),
            torch.randn(2, 20, generator=generator),
        )
        x = left @ right * (group.rank + 1)
        vector = torch.full((7,), float(group.rank))
        flat = torch.cat([x.view(-1), vector])
        views = [flat[:600].view(30, 20), flat[600:]]
        PowerSGD(2).average(group, Gradients(flat, views, [x, vector]))
        return (views[0] - left @ right * 1.5).abs().max().item(), views[1].tolist()

    for off, vector in pools[2](low_rank):
        assert off < 1e-4
        assert vector == [0.5] * 7


def train_both(group, name):
    def network():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 8))

    ours = DistributedDataParallel(network(), group, 1 << 40, 1 << 40)
    ours.register_comm_hook(hook(COMPRESSORS[name](True)))
    theirs = nn.parallel.DistributedDataParallel(network())
    theirs.register_comm_hook(None, torch_hook(COMPRESSORS[name](True), group))
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(group.rank))
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    pairs = zip(ours.module.parameters(), theirs.module.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", ["bf16", "top", "sign", "power"])
def test_the_same_hook_does_the_same_in_pytorchs_ddp(pools, name):
    assert max(pools[2](train_both, name)) < 1e-6


def average_in_dtype(group, name, dtype):
    """Averages of three steps, of a gradient with an odd number of elements."""
    compressor, parameter, found = COMPRESSORS[name](True), torch.zeros(41, 25), []
    for _ in range(3):
        x = gradient_of(group.rank, (41, 25)).to(dtype)
        compressor.average(group, Gradients(x.view(-1), [x], [parameter]))
        found.append(x)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", [*COMPRESSORS])
def test_gradients_of_any_float_dtype_are_averaged_as_float32_is(pools, name, dtype):
    expected = pools[2](average_in_dtype, name, torch.float32)[0]
    found, same = pools[2](average_in_dtype, name, dtype)
    for got, other in zip(found, same, strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, other), "replicas agree to the bit"
    if name not in ("top", "random"):  # which send few elements, and round which ones they choose
        assert (found[0].float() - expected[0]).norm() < 0.02 * expected[0].norm()


@pytest.mark.parametrize("name", ["top", "sign"])
def test_means_of_large_float16_do_not_overflow(pools, name):
    def large(group, name):
        x = torch.full((20,), 40_000.0, dtype=torch.float16)
        COMPRESSORS[name](False).average(group, Gradients(x, [x], [x]))
        return x.max().item()

    assert pools[2](large, name) == [40_000.0] * 2


def train_in_format(group, name, memory_format):
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(3, 40, 3), nn.Tanh(), nn.Flatten(), nn.Linear(40, 30))
    model = DistributedDataParallel(module.to(memory_format=memory_format), group)
    model.register_comm_hook(hook(COMPRESSORS[name](True)))
    x = torch.randn(6, 3, 3, 3, generator=torch.Generator().manual_seed(group.rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach().contiguous() for p in module.parameters()]


@pytest.mark.parametrize("name", ["bf16", "top", "sign", "power"])
def test_channels_last_weights_are_trained_as_contiguous_ones(pools, name):
    expected = pools[2](train_in_format, name, torch.contiguous_format)[0]
    for found in pools[2](train_in_format, name, torch.channels_last):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_complex_gradients_are_not_cut_to_their_real_part(pools):
    def refuse(group):
        module = nn.Linear(2, 2).to(torch.complex64)
        model = DistributedDataParallel(module, group)
        model.register_comm_hook(hook(Cast()))
        with pytest.raises(TypeError, match="compressors need real gradients"):
            model(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()

    pools[2](refuse)


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_nonsense(share):
    with pytest.raises(ValueError, match="share="):
        TopK(share)
    with pytest.raises(ValueError, match="share="):
        RandomK(share)
    with pytest.raises(ValueError, match="rank=0"):
        PowerSGD(0)
