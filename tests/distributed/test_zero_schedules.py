"""Parameter groups and torch's schedulers: the same on every rank and stage as on one device."""

from functools import partial

import pytest
import torch
from tests.rows import covering
from torch import nn
from torch.optim import lr_scheduler

from distributed.zero import Zero1, Zero2, Zero3
from distributed.zero.checkpoint import load, save

STAGES = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
STEPS, RANKS = 6, 4


def make_model():
    """More ranks than a group has numbers: some rank has nothing of a group."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def groups_of(model):
    """Weights; nothing at all; the first bias; the last one, which is a single number."""
    first, last = model[0], model[2]
    return [
        {"params": [first.weight, last.weight]},
        {"params": []},
        {"params": [first.bias], "lr": 0.2},
        {"params": [last.bias], "lr": 0.3, "weight_decay": 0.0},
    ]


def halve(step):
    return 0.5**step


def stay(step):
    return 1.0


SCHEDULERS = {
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=[halve, stay, stay, halve]),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=[0.1, 0.1, 0.2, 0.3], total_steps=20),
    "CyclicLR": partial(
        lr_scheduler.CyclicLR, base_lr=[0.01] * 4, max_lr=[0.1, 0.2, 0.3, 0.4], step_size_up=3
    ),
    "StepLR": partial(lr_scheduler.StepLR, step_size=2),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "ReduceLROnPlateau": partial(
        lr_scheduler.ReduceLROnPlateau, patience=0, min_lr=[0.0, 0.0, 0.05, 0.1]
    ),
}
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def advance(schedule):
    """A scheduler's step; a plateau, where there is one, has come in every second of them."""
    if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
        schedule.step(metrics=1.0 + schedule.last_epoch % 2)
    else:
        schedule.step()


def learn(model, step, optimizer, schedule, steps):
    """Train on the same batch on every rank: the learning rates, step by step."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rates = []
    for _ in range(steps):
        model(x).square().mean().backward()
        rates.append([group["lr"] for group in optimizer.param_groups])
        step()
        advance(schedule)
    return rates


def alone(scheduler):
    model = make_model()
    optimizer = torch.optim.SGD(groups_of(model), **SETTINGS)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    rates = learn(model, step, optimizer, SCHEDULERS[scheduler](optimizer), STEPS)
    return rates, {name: p.detach() for name, p in model.named_parameters()}


def make_zero(group, stage):
    model = make_model()
    return STAGES[stage](
        model, torch.optim.SGD, group, param_groups=groups_of(model), **SETTINGS
    )  # fmt: skip


def together(group, stage, scheduler):
    zero = make_zero(group, stage)
    schedule = SCHEDULERS[scheduler](zero)
    rates = learn(zero.module, zero.step, zero, schedule, STEPS)
    return rates, {name: value.clone() for name, value in zero.full_parameters()}


def assert_as_alone(results, expected):
    rates, weights = expected
    assert len(set(map(tuple, rates))) > 1, "the schedule does something"
    for found_rates, found in results:
        assert found_rates == rates
        for name, value in found.items():
            torch.testing.assert_close(value, weights[name], rtol=1e-9, atol=1e-9, msg=name)


@covering(stage=[*STAGES], scheduler=[*SCHEDULERS])
def test_a_schedule_of_torch_drives_every_group_on_every_rank(pools, stage, scheduler):
    assert_as_alone(pools[RANKS](together, stage, scheduler), alone(scheduler))


def stop_and_go_on(group, stage, scheduler, folder):
    zero = make_zero(group, stage)
    schedule = SCHEDULERS[scheduler](zero)
    rates = learn(zero.module, zero.step, zero, schedule, STEPS // 2)
    save(zero, folder, 1, schedule=schedule.state_dict())
    zero = make_zero(group, stage)
    schedule = SCHEDULERS[scheduler](zero)
    schedule.load_state_dict(load(zero, folder)["schedule"])
    rates += learn(zero.module, zero.step, zero, schedule, STEPS - STEPS // 2)
    return rates, {name: value.clone() for name, value in zero.full_parameters()}


@covering(stage=[*STAGES], scheduler=["LambdaLR", "OneCycleLR", "CyclicLR"])
def test_a_schedule_goes_on_after_a_checkpoint(pools, tmp_path, stage, scheduler):
    results = pools[RANKS](stop_and_go_on, stage, scheduler, tmp_path)
    assert_as_alone(results, alone(scheduler))


def freeze(group, stage, number):
    zero = make_zero(group, stage)
    before = {name: value.clone() for name, value in zero.full_parameters()}
    zero.param_groups[number]["lr"] = 0.0
    zero.module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    zero.step()
    return {name for name, value in zero.full_parameters() if torch.equal(value, before[name])}


@pytest.mark.parametrize("stage", STAGES)
def test_a_learning_rate_belongs_to_the_same_group_on_every_rank(pools, stage):
    groups = [{"0.weight", "2.weight"}, set(), {"0.bias"}, {"2.bias"}]
    for number, names in enumerate(groups):
        assert pools[RANKS](freeze, stage, number) == [names] * RANKS


def groups_of_each_rank(group, stage, folder):
    """Save on these ranks: a group's settings are saved though no rank but one has its numbers."""
    zero = make_zero(group, stage)
    for number, settings in enumerate(zero.param_groups):
        settings["lr"] = 1.0 + number
        settings["label"] = f"group {number}"
    save(zero, folder, 1)


def groups_again(group, stage, folder):
    zero = make_zero(group, stage)
    load(zero, folder)
    return [(settings["lr"], settings["label"]) for settings in zero.param_groups]


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(RANKS, 1), (1, RANKS)])
def test_every_groups_settings_are_in_a_checkpoint(pools, tmp_path, saved_by, loaded_by):
    pools[saved_by](groups_of_each_rank, "zero1", tmp_path)
    found = pools[loaded_by](groups_again, "zero3", tmp_path)
    assert found == [[(1.0 + i, f"group {i}") for i in range(4)]] * loaded_by
