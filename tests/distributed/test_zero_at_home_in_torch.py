"""Every stage of ZeRO as torch's own code and a user's loop meet it: an optimizer, no more."""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from tests.rows import covering
from torch import nn
from torch.optim import lr_scheduler

from distributed.ring_group import RingGroup
from distributed.runtime.group import Group
from distributed.runtime.report import RankError
from distributed.shared_memory import SharedGroup
from distributed.zero import Zero1, Zero2, Zero3

STAGES = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
GROUPS = {"gloo": lambda group: group, "ring": RingGroup, "shared": SharedGroup}
every_stage = pytest.mark.parametrize("stage", STAGES)


def make_model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


X = torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)


def users_loop(model, optimizer, steps=4):
    """As it stands in torch's tutorials: nothing here knows of ranks."""
    schedule = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    return optimizer.param_groups[0]["lr"]


def in_a_users_loop(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.AdamW, lr=0.1)  # the default process group
    assert isinstance(zero, torch.optim.Optimizer)
    assert (zero.group.size, zero.group.backend) == (dist.get_world_size(), None)
    rate = users_loop(model, zero)
    return rate, {name: value.clone() for name, value in zero.full_parameters()}


@pytest.mark.filterwarnings("error::UserWarning")
@every_stage
def test_a_users_loop_and_a_schedule_need_no_change_and_no_group(pools, stage):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    expected = users_loop(model, optimizer)
    for rate, found in pools[3](in_a_users_loop, stage):
        assert rate == expected
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-9, atol=1e-9)


def shrink(optimizer, *_):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter *= 0.5


def with_a_hook(optimizer, model, when):
    getattr(optimizer, f"register_step_{when}_hook")(shrink)
    losses = []
    for _ in range(3):
        loss = model(X).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def on_shards_with_a_hook(group, stage, when):
    model = make_model()
    return with_a_hook(STAGES[stage](model, torch.optim.SGD, group, lr=0.1), model, when)


@every_stage
@pytest.mark.parametrize("when", ["pre", "post"])
def test_what_a_hook_of_the_optimizer_writes_reaches_every_rank(pools, stage, when):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = with_a_hook(optimizer, model, when)
    for losses in pools[3](on_shards_with_a_hook, stage, when):
        assert losses == pytest.approx(expected, rel=1e-12)


def halve(parameter):
    parameter.grad *= 0.5


def hooked_after_wrapping(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    (model(X).square().mean() * (1 + group.rank)).backward()
    return {name: gradient.clone() for name, gradient in zero.full_gradients()}


@every_stage
def test_a_gradient_hook_after_wrapping_changes_what_is_averaged(pools, stage):
    model = make_model()
    model(X).square().mean().backward()
    for found in pools[3](hooked_after_wrapping, stage):
        for name, parameter in model.named_parameters():
            # The mean of 1, 2 and 3 is 2, and the hook halves it.
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-12, atol=1e-12)


def with_closures(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)

    def closure():
        zero.zero_grad(set_to_none=False)
        loss = model(X).square().mean()
        loss.backward()
        return loss

    return [zero.step(closure).item() for _ in range(3)]


@every_stage
def test_a_step_takes_a_closure_and_returns_its_loss(pools, stage):
    model, expected = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(X).square().mean()
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for found in pools[2](with_closures, stage):
        assert found == pytest.approx(expected, rel=1e-9)


def step_on(zero, times):
    for _ in range(times):
        zero.module(X).square().mean().backward()
        zero.step()


def saved_and_loaded(group, stage):
    zero = STAGES[stage](make_model(), torch.optim.Adam, group, lr=0.1)
    step_on(zero, 3)
    weights = {name: value.clone() for name, value in zero.full_parameters()}
    saved = copy.deepcopy(zero.state_dict())  # as in torch, its tensors are the optimizer's own
    step_on(zero, 1)
    expected = [value.clone() for _, value in zero.full_parameters()]
    model = make_model()
    model.load_state_dict(weights)
    again = STAGES[stage](model, torch.optim.Adam, group, lr=7.0)
    again.load_state_dict(saved)
    assert again.param_groups is again.optimizer.param_groups
    assert again.param_groups[0]["lr"] == 0.1
    assert again.state is again.optimizer.state
    step_on(again, 1)
    found = [value.clone() for _, value in again.full_parameters()]
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@every_stage
def test_a_ranks_own_states_are_saved_and_loaded(pools, stage):
    assert pools[3](saved_and_loaded, stage) == [True] * 3


def loads_rank_0s(group, stage):
    zero = STAGES[stage](make_model(), torch.optim.Adam, group, lr=0.1)
    step_on(zero, 1)
    saved = [copy.deepcopy(zero.state_dict())]
    dist.broadcast_object_list(saved, 0)
    zero.load_state_dict(saved[0])


@every_stage
def test_a_rank_refuses_the_states_of_a_different_one(pools, stage):
    with pytest.raises(RankError, match=r"rank 1 raised ValueError: state_dict: .* rank 0 of 2, "):
        pools[2](loads_rank_0s, stage)


def after_backward(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    model(X).square().mean().backward()
    before = {type(p.grad).__name__ for p in model.parameters()}
    zero.reduce()
    after = {type(p.grad).__name__ for p in model.parameters()}
    shards = [(unit.gradient.shape, unit.shard.shape) for unit in zero.trained]
    zero.step()
    assert all(p.grad is None for p in model.parameters())
    return before, after, all(a == b for a, b in shards)


@every_stage
def test_gradients_of_parameters_go_where_they_are_reduced(pools, stage):
    """With ZeRO-2 and 3 in the backward pass: `grad` only has a shape, and each unit a shard."""
    for before, after, shards in pools[2](after_backward, stage):
        assert before == {"OwnGradient" if stage == "zero1" else "SpreadGradient"}
        assert after == {"NoneType" if stage == "zero1" else "SpreadGradient"}
        assert shards


def groups_are_fixed(group, stage):
    zero = STAGES[stage](make_model(), torch.optim.SGD, group, lr=0.1)
    zero.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@every_stage
def test_a_group_cannot_be_added_when_shards_are_cut(pools, stage):
    with pytest.raises(RankError, match="param_groups= when you make it"):
        pools[2](groups_are_fixed, stage)


@every_stage
def test_parameters_in_place_of_a_module_are_refused_in_a_line(stage):
    for given in (make_model().parameters(), [*make_model().parameters()]):
        with pytest.raises(TypeError, match="give the module itself, not its parameters") as said:
            STAGES[stage](given, torch.optim.AdamW, lr=0.1)
        assert "\n" not in str(said.value)


@every_stage
def test_without_a_process_group_it_says_what_to_call(stage):
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match="init_process_group") as said:
        STAGES[stage](make_model(), torch.optim.AdamW, lr=0.1)
    assert "\n" not in str(said.value)


# --- the dtype in which means are made


def mean_of(group, stage, kind, dtype, each):
    plain = Group(group.device, None, group.local_size, group.backend)
    group = GROUPS[kind](plain)
    model = nn.Linear(2, 1, bias=False).to(dtype)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    model(torch.full((1, 2), each[group.rank], dtype=dtype)).sum().backward()
    zero.reduce()
    (unit,) = zero.trained
    assert unit.gradient.dtype == dtype
    return unit.gradient.tolist()


@every_stage
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize(
    "each",
    [
        pytest.param((40_000.0, 40_000.0), id="the sum overflows float16"),
        pytest.param((40_000.0, -40_000.0), id="the mean is zero"),
        pytest.param((2.0**-22, 2.0**-22), id="a few steps above the smallest number"),
    ],
)
def test_a_mean_in_float16_neither_overflows_nor_vanishes(pools, stage, kind, each):
    for found in pools[2](mean_of, stage, kind, torch.float16, each):
        assert found == [sum(each) / 2]


@every_stage
def test_a_mean_in_bfloat16_has_the_range_of_float32(pools, stage):
    for found in pools[2](mean_of, stage, "gloo", torch.bfloat16, (2.0**120, 2.0**-120)):
        assert found == [2.0**119]


def layers_of_ones():
    """1⁴ for an input of 1."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(4)))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    return model


@torch.no_grad()
def write_twos(zero):
    for mine in (mine for group in zero.param_groups for mine in group["params"]):
        mine.fill_(2.0)


def writes_into_shards(group, stage, dtype, where):
    """Outputs after a step with lr=0 and a write into the shards, and after one more such step."""
    model, x = layers_of_ones(), torch.ones(1, 1, dtype=dtype)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.0, param_dtype=dtype)
    outputs = []
    for step in (1, 2):
        model(x).sum().backward()
        if step == 1 and where in ("pre", "post"):
            getattr(zero, f"register_step_{where}_hook")(lambda *_: write_twos(zero))
        zero.step()
        with torch.no_grad():
            model(x)  # after it ZeRO-3 still has parameters of the root and of some blocks
        if step == 1 and where not in ("pre", "post"):
            write_twos(zero)
            assert all(value.eq(2).all() for _, value in zero.full_parameters())
            if where == "all are told":
                zero.shards_changed()
        with torch.no_grad():
            outputs.append(model(x).item())
    return outputs


@covering(stage=[*STAGES], dtype=[None, torch.bfloat16], where=["pre", "post", "all are told"])
def test_what_is_written_into_shards_counts_on_all_ranks(pools, stage, dtype, where):
    assert pools[2](writes_into_shards, stage, dtype, where) == [[16.0, 16.0]] * 2


@covering(stage=[*STAGES], dtype=[None, torch.bfloat16])
def test_what_is_written_into_shards_and_not_told_is_refused(pools, stage, dtype):
    with pytest.raises(RankError, match=r"shards were written .* call shards_changed\(\)"):
        pools[2](writes_into_shards, stage, dtype, "nobody is told")


def weights_of_growing_layers(group, shared):
    torch.manual_seed(0)
    sizes = (9, 7, 5, 3, 2, 1)  # the backward pass begins with the smallest
    model = nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(sizes))).double()
    home = SharedGroup(group) if shared else group
    zero = Zero2(model, torch.optim.SGD, home, lr=0.1, bucket_bytes=8)
    for step in range(3):
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(2 * step + group.rank))
        model(x.double()).square().sum().backward()
        zero.step()
    return [tensor for _, tensor in zero.full_parameters()]


def test_buckets_that_grow_during_a_pass_find_room_in_shared_memory(pools):
    expected = pools[2](weights_of_growing_layers, False)
    for found, other in zip(pools[2](weights_of_growing_layers, True), expected, strict=True):
        for a, b in zip(found, other, strict=True):
            torch.testing.assert_close(a, b)
