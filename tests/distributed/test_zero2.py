"""ZeRO-2: what a rank holds during and after a backward pass, and what it sends when."""

import contextlib

import pytest
import torch
from torch import nn

from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches
from distributed.workbench.memory_meter import watch
from distributed.workbench.training import make_network, train
from distributed.zero import Zero1, Zero2, Zero3

PSI = 64 * 256 + 256 + 7 * (256 * 256 + 256) + 256 * 10 + 10
BUCKET = 300_000  # bytes: about one of the layers


def watched(group):
    model = make_network(width=256, depth=8)
    # Over a RingGroup: gloo copies what it reduces, and lets go of the copy when its threads will.
    # The last message's memory stays until the next is sent (see Transport).
    zero = Zero2(model, torch.optim.Adam, RingGroup(group), bucket_bytes=BUCKET)
    use = watch(model, zero, 16, 16)
    return use.after["backward"], use.peak


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_a_share_and_two_buckets_at_most(pools, ranks):
    for after, peak in pools[ranks](watched):
        assert after["parameters"] == pytest.approx(4 * PSI, rel=1e-3)
        assert after["gradients"] == pytest.approx(4 * PSI / ranks, rel=1e-3)
        assert after["optimizer states"] == pytest.approx(8 * PSI / ranks, rel=1e-3)
        assert after.get("buckets", 0) == 0
        assert peak.get("buckets", 0) <= 2 * (BUCKET + 4 * ranks)
        assert after.get("backward", 0) < BUCKET / 2, "no whole gradient is left"
        # A gradient or two that were not copied yet, and the buckets of the last two messages.
        assert peak.get("backward", 0) < 4 * BUCKET < 4 * PSI


def phases(group, micro):
    model = make_network(width=20, depth=3)
    zero = Zero2(model, torch.optim.SGD, RingGroup(group), lr=0.1, bucket_bytes=3000)
    zero.group.trace = trace = Trace(group.rank)
    with zero.no_sync():
        for _ in range(micro):
            train(model, lambda: None, batches(1797, 8, 1), 8.0)
    quiet = trace.sent
    train(model, lambda: None, batches(1797, 8, 1), 8.0)
    return quiet, trace.sent, 4 * (group.size - 1) * sum(u.layout.shard_size for u in zero.units)


def test_no_sync_sends_nothing_and_the_next_pass_everything_once(pools):
    for quiet, sent, expected in pools[3](phases, 3):
        assert (quiet, sent) == (0, expected)


def reduced_when_half_is_in_no_sync(group, stage, forward_inside):
    """Bytes of gradients that are sent before the step; and the gradient of the step."""
    model = nn.Linear(4, 4, bias=False)
    ring = RingGroup(group)
    zero = stage(model, torch.optim.SGD, ring, lr=1.0)
    with zero.no_sync() if forward_inside else contextlib.nullcontext():
        loss = model(torch.full((1, 4), 1.0 + group.rank)).sum()
    ring.trace = trace = Trace(group.rank)
    with contextlib.nullcontext() if forward_inside else zero.no_sync():
        loss.backward()
    sent = trace.sent
    ((_, gradient),) = zero.full_gradients()
    return sent, gradient.unique().tolist()


@pytest.mark.parametrize("stage", [Zero2, Zero3])
def test_no_sync_decides_in_the_forward_pass(pools, stage):
    shard = 4 * 4 * 4 // 2
    found = pools[2](reduced_when_half_is_in_no_sync, stage, True)
    assert found == [(0, [1.5])] * 2
    found = pools[2](reduced_when_half_is_in_no_sync, stage, False)
    assert found == [(shard, [1.5])] * 2


def nested(group):
    model = make_network(width=20, depth=3)
    zero = Zero2(model, torch.optim.SGD, RingGroup(group), lr=0.1, bucket_bytes=3000)
    zero.group.trace = trace = Trace(group.rank)
    with zero.no_sync():
        with zero.no_sync():
            pass
        train(model, lambda: None, batches(1797, 8, 1), 8.0)
    return trace.sent


def test_the_end_of_an_inner_no_sync_leaves_the_outer_one(pools):
    assert pools[2](nested) == [0, 0]


def overlapping(group):
    model = make_network(width=256, depth=8)
    zero = Zero2(model, torch.optim.SGD, group, lr=0.1, bucket_bytes=BUCKET)
    ready = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: ready.append(len(sent())))

    def sent():
        return [unit for unit in zero.units if unit not in zero.gradients.to_reduce]

    train(model, zero.step, batches(1797, 16, 1), 16.0)
    return ready


def test_buckets_leave_before_the_last_gradient_is_there(pools):
    for ready in pools[2](overlapping):
        assert ready[0] == 0
        assert ready[-2] > 0, "some bucket had left before the last gradient but one"


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("on purpose")


def recovers(group):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.manual_seed(0)
    zero = Zero2(model, torch.optim.SGD, group, lr=0.5, bucket_bytes=80)
    x = torch.ones(2, 4)
    for failing in (True, False):
        hidden = model[0](x)
        y = model[1](Fails.apply(hidden) if failing else hidden).sum()
        if failing:
            with pytest.raises(ArithmeticError):
                y.backward()
            zero.zero_grad()
            before = [p.detach().clone() for p in model.parameters()]
        else:
            y.backward()
            expected = torch.autograd.grad(model[1](model[0](x)).sum(), [*model.parameters()])
            zero.step()
    return [
        (b - 0.5 * g - p.detach()).abs().max().item()
        for b, g, p in zip(before, expected, model.parameters(), strict=True)
    ]


def test_a_backward_pass_that_failed_leaves_nothing_behind(pools):
    for apart in pools[2](recovers):
        assert max(apart) < 1e-6


class Skips(nn.Module):
    """Its second layer can be left out, and behind its first layer a backward pass can fail."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, skips, fails):
        hidden = self.first(x)
        hidden = Fails.apply(hidden) if fails else hidden
        return self.third(hidden if skips else self.second(hidden)).sum()


def recovers_from_unequal_graphs(group, sync):
    torch.manual_seed(0)
    model = Skips()
    zero = Zero2(model, torch.optim.SGD, group, lr=0.5, bucket_bytes=80)
    x = torch.ones(2, 4)
    with contextlib.nullcontext() if sync else zero.no_sync(), pytest.raises(ArithmeticError):
        model(x, skips=group.rank == 0, fails=True).backward()
    zero.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    expected = torch.autograd.grad(model(x, skips=False, fails=False), [*model.parameters()])
    model(x, skips=False, fails=False).backward()
    zero.reduce()
    gradients = {name: gradient.clone() for name, gradient in zero.full_gradients()}
    return [
        (gradients[name] - g).abs().max().item()
        for (name, _), g in zip(model.named_parameters(), expected, strict=True)
    ]


@pytest.mark.parametrize("sync", [True, False])
def test_ranks_may_have_reduced_different_buckets_when_a_backward_pass_fails(pools, sync):
    for apart in pools[2](recovers_from_unequal_graphs, sync):
        assert max(apart) < 1e-6


def fails_at_its_output(group, stage, go_on):
    """A micro-batch succeeds, and the next pass raises when it has reached the output."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    zero = stage(model, torch.optim.SGD, group, lr=0.5)
    model(torch.ones(2, 4)).sum().backward()
    hook = model[1].register_forward_hook(lambda *found: Fails.apply(found[2]))
    with pytest.raises(ArithmeticError):
        model(torch.ones(2, 4)).sum().backward()
    hook.remove()
    if go_on == "zero_grad":
        zero.zero_grad()
    if go_on != "step":
        model(torch.ones(2, 4)).sum().backward()
    zero.step()


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
def test_a_step_after_a_pass_that_raised_asks_for_zero_grad(pools, stage):
    for go_on in ("step", "forward"):
        with pytest.raises(RankError, match=r"the last backward pass raised: call zero_grad\(\)"):
            pools[2](fails_at_its_output, stage, go_on)
    pools[2](fails_at_its_output, stage, "zero_grad")


class Hidden:
    def __init__(self, tensor):
        self.tensor = tensor


def fails_halfway(group, stage):
    """Of a pass through no output that is seen, which raises between two gradients."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    stage(model, torch.optim.SGD, group, lr=0.5)
    hooks = [
        model[0].register_forward_hook(lambda *found: Fails.apply(found[2])),
        model.register_forward_hook(lambda *found: Hidden(found[2]), prepend=True),
    ]
    with pytest.raises(ArithmeticError):
        model(torch.ones(2, 4)).tensor.sum().backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        model(torch.ones(2, 4))
    model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("stage", [Zero1, Zero2])
def test_a_pass_that_raised_is_noticed_without_an_output(pools, stage):
    with pytest.raises(RankError, match=r"the last backward pass raised: call zero_grad\(\)"):
        pools[2](fails_halfway, stage)


def evaluated_before_a_penalty(group):
    """The gradient of a penalty comes before any output's: the last training pass was outside."""
    model = nn.Linear(2, 2, bias=False)
    zero = Zero2(model, torch.optim.SGD, group, lr=1.0)
    loss = model(torch.ones(1, 2)).sum()
    with zero.no_sync(), torch.no_grad():
        model(torch.ones(1, 2))
    model.weight.square().sum().backward()
    reduced = model.weight in zero.gradients.reducer.is_spread
    del loss
    return reduced


def test_an_evaluation_does_not_decide_whether_gradients_are_sent(pools):
    assert pools[2](evaluated_before_a_penalty) == [True, True]


class WithWords(nn.Linear):
    """Returns what has no gradient as well: a tensor, a word, and nothing at all."""

    def forward(self, x):
        y = super().forward(x)
        return {"y": y, "signs": y > 0, "said": ("word", None)}


def evaluate_and_train(group):
    torch.manual_seed(0)
    model = WithWords(3, 2)
    zero = Zero2(model, torch.optim.SGD, group, lr=0.1)
    with torch.no_grad():
        before = model(torch.ones(4, 3))["y"]
    model(torch.ones(4, 3))["y"].sum().backward()
    zero.step()
    return (model(torch.ones(4, 3))["y"] - before).detach()


def test_a_module_may_return_what_has_no_gradient_and_is_evaluated_as_before(pools):
    # The gradient of each weight and of the bias is 4; each enters y once.
    for change in pools[2](evaluate_and_train):
        torch.testing.assert_close(change, torch.full((4, 2), -0.1 * 4 * (3 + 1)))
