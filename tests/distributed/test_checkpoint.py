"""Sharded checkpoints: other ranks, other stages, PyTorch's own, kills and mistakes."""

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import covering
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from distributed.checkpoint_folder import latest, new_checkpoint, steps
from distributed.runtime.mesh import mesh
from distributed.runtime.report import RankError
from distributed.workbench.data import batches
from distributed.workbench.memory_meter import MemoryUse
from distributed.workbench.training import make_network, train
from distributed.zero import HSDP, Zero1, Zero2, Zero3, checkpoint
from distributed.zero.boxes import boxes
from distributed.zero.checkpoint import full_state_dict, load, load_path, save

CODE = Path(__file__).parents[2] / "code"
STAGES = {1: Zero1, 2: Zero2, 3: Zero3}


@given(shape=st.lists(st.integers(1, 6), max_size=4), data=st.data())
def test_boxes_are_the_numbers_in_order_and_few(shape, data):
    n = prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    whole = torch.arange(n).view(shape)
    found = list(boxes(shape, start, stop))
    cut = [whole[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))] for box in found]
    assert [number for part in cut for number in part.flatten().tolist()] == [*range(start, stop)]
    assert len(found) <= max(1, 2 * len(shape) - 1)


class Mixed(nn.Module):
    """Tied, frozen, empty and single numbers, a buffer, and sizes that nothing divides."""

    def __init__(self, odd=True):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Linear(3, 7)
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))
        self.norm = nn.BatchNorm1d(7)
        self.tied = nn.Linear(3, 7, bias=False)
        self.tied.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(() if odd else 1))
        if odd:
            self.nothing = nn.Parameter(torch.ones(0, 2))
        self.blocks[1].weight.requires_grad_(False)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x).tanh()
        return (self.norm(x) * self.scale) @ self.tied.weight


def groups_of(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1]},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def make(group, stage, odd=True):
    model = Mixed(odd)
    for p in model.parameters():
        p.data.add_(group.rank)
    groups = groups_of(model)
    return STAGES[stage](model, torch.optim.AdamW, group, param_groups=groups, lr=0.05)


def learn(zero, times, seed=0):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    for _ in range(times):
        zero.module(x).square().mean().backward()
        zero.step()


def everything(zero):
    """Weights by name, and each state's numbers by name and place."""
    weights = {name: value.clone() for name, value in zero.full_parameters()}
    states = {}
    pieces = [(mine.parameter, *piece) for mine in zero.local for piece in mine.pieces]
    for local, parameter, param_slice, local_slice in pieces:
        for key, value in zero.optimizer.state[local].items():
            flat = value.view(-1)
            numbers = flat[local_slice] if value.shape == local.shape else flat
            place = states.setdefault((zero.names[parameter], key), [])
            place.append((param_slice.start, numbers.clone()))
    return weights, states, zero.module.norm.running_mean.clone()


def gathered(results):
    """All ranks' states put together: (name, key) → numbers."""
    found = {}
    for _, states, _ in results:
        for key, parts in states.items():
            found.setdefault(key, []).extend(parts)
    return {
        key: torch.cat([part for _, part in sorted(parts, key=lambda p: p[0])])
        if key[1] != "step"
        else parts[0][1]
        for key, parts in found.items()
    }


def train_and_save(group, stage, folder):
    zero = make(group, stage)
    learn(zero, 3)
    zero.optimizer.param_groups[0]["lr"] = 0.01
    save(zero, folder, 3, seen=24, note=["a", None])
    return everything(zero)


def save_a_step_as_extra(group, folder):
    zero = make(group, 1)
    save(zero, folder, 3, step=3)
    return load(zero, folder)


def test_extra_may_have_the_name_of_a_parameter_of_save(pools, tmp_path):
    assert pools[2](save_a_step_as_extra, str(tmp_path)) == [{"step": 3}] * 2


def save_and_load_extra(group, folder, extra):
    zero = make(group, 3)
    learn(zero, 1)
    save(zero, folder, 1, **extra)
    return load(zero, folder)


def test_extra_comes_back_as_it_was(pools, tmp_path):
    extra = {
        "empty": {},
        "nested": {"a": {}, "b": [1, {}]},
        "pair": (1, "x"),
        "seed": torch.tensor(3),
    }
    for found in pools[2](save_and_load_extra, str(tmp_path), extra):
        assert found == extra


def load_and_look(group, stage, folder):
    zero = make(group, stage)
    learn(zero, 1, seed=5)  # states that are there already must go
    extra = load(zero, folder)
    return everything(zero), extra, zero.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        ((3, 4), (3, 2)),
        ((1, 4), (3, 8)),
        ((2, 3), (2, 3)),
        pytest.param((3, 4), (1, 3), marks=pytest.mark.slow),
        pytest.param((1, 1), (3, 5), marks=pytest.mark.slow),
    ],
)
def test_any_stage_and_number_of_ranks_reads_what_another_wrote(
    pools, tmp_path, saved_by, loaded_by
):
    stage, ranks = saved_by
    before = pools[ranks](train_and_save, stage, tmp_path)
    stage, ranks = loaded_by
    results = pools[ranks](load_and_look, stage, tmp_path)
    after = [found for found, _, _ in results]
    for weights, _, mean in after:
        assert torch.equal(mean, before[0][2])
        for name, value in before[0][0].items():
            assert torch.equal(weights[name], value), name
    states, expected = gathered(after), gathered(before)
    assert states.keys() == expected.keys()
    assert all(torch.equal(states[key], expected[key]) for key in states)
    assert all(extra == {"seen": 24, "note": ["a", None]} for _, extra, _ in results)
    assert all(rate == 0.01 for _, _, rate in results)


def saved_in_32_bits(group, folder):
    zero = Zero3(make_network(width=9), torch.optim.Adam, group, param_dtype=torch.bfloat16)
    train(zero.module, zero.step, batches(1797, 8, 3), 8.0)
    save(zero, folder, 3)
    found = []
    for stage, dtypes in ((1, {"param_dtype": torch.bfloat16}), (2, {}), (3, {})):
        other = STAGES[stage](make_network(width=9), torch.optim.Adam, group, **dtypes)
        train(other.module, other.step, batches(1797, 8, 1), 8.0)
        load(other, folder)
        mine = {name: value.clone() for name, value in other.full_parameters()}
        theirs = {name: value.clone() for name, value in zero.full_parameters()}
        found.append(all(torch.equal(mine[name], theirs[name]) for name in theirs))
    rounded = any((v.bfloat16().float() != v).any().item() for v in theirs.values())
    half = Zero2(make_network(width=9).bfloat16(), torch.optim.Adam, group)
    with pytest.raises(ValueError, match=r"0\.bias is torch\.float32\[9\] there, torch\.bfloat16"):
        load(half, folder)
    return all(found), rounded


def test_shards_keep_all_digits_in_a_file_whatever_parameters_are_gathered_in(pools, tmp_path):
    assert pools[2](saved_in_32_bits, tmp_path) == [(True, True)] * 2


def frozen_under_a_policy(group, saved_by, loaded_by, folder):
    found = []
    for stage, act in ((saved_by, save), (loaded_by, load)):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        model[0].requires_grad_(False)
        options = {"param_dtype": torch.bfloat16, "lr": 0.1}
        zero = STAGES[stage](model, torch.optim.SGD, group, **options)
        act(zero, folder, 1)
        found.append({name: value.clone() for name, value in zero.full_parameters()})
    before, after = found
    return all(torch.equal(before[name].bfloat16(), after[name].bfloat16()) for name in before)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_frozen_parameters_change_stage_under_a_policy(pools, tmp_path, saved_by, loaded_by):
    assert pools[2](frozen_under_a_policy, saved_by, loaded_by, tmp_path) == [True] * 2


FLAT = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop")
FLAT += ("Rprop", "ASGD")
MORE = {"SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "RMSprop": {"momentum": 0.9}}


class Scaled(nn.Module):
    """Matrices, and numbers without dimensions: a state of those has the shape of a counter."""

    def __init__(self, single):
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(3, 3, bias=False).double()
        self.layer.requires_grad_(not single)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.shift = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return (self.layer(x) * self.scale + self.shift).square().mean()


def half(group, stage, name, partition, single, folder):
    """Train on from the file, if there is one, and save; the whole weights."""
    optimizer, x = getattr(torch.optim, name), torch.linspace(-1, 1, 6).view(2, 3).double()
    options = {"partition": partition, "lr": 0.01, **MORE.get(name, {})}
    zero = STAGES[stage](Scaled(single), optimizer, group, **options)
    done = load(zero, folder)["done"] if latest(group, folder) else 0
    for _ in range(3):
        zero.module(x).backward()
        zero.step()
    save(zero, folder, done + 1, done=done + 1)
    return {name: value.clone() for name, value in zero.full_parameters()}


def on_one_device(name, single):
    model, x = Scaled(single), torch.linspace(-1, 1, 6).view(2, 3).double()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, name)(trained, lr=0.01, **MORE.get(name, {}))
    for _ in range(6):
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


@covering(
    ranks=[1, 3],
    name__partition={
        **{name: (name, "flat") for name in FLAT},
        "Adafactor": ("Adafactor", "parameter"),
    },
    single={"matrix and scalars": False, "scalars alone": True},
)
def test_every_optimizer_goes_on_from_its_file(pools, tmp_path, ranks, name, partition, single):
    expected = on_one_device(name, single)
    how = name, partition, single, tmp_path
    pools[2](half, 1, *how)
    results = pools[ranks](half, 3, *how)
    for found in results:
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key].detach(), rtol=1e-9, atol=1e-9)


# --- PyTorch's own road


def shard_by_torch(group):
    model = Mixed(odd=False)  # FSDP takes no parameter without dimensions or numbers
    for block in model.blocks:
        fully_shard(block, mesh=init_device_mesh("cpu", (group.size,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (group.size,)))
    return model, torch.optim.AdamW(groups_of(model), lr=0.05)


def learn_by_torch(model, optimizer, times, seed=0):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    for _ in range(times):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def write_a_file(group, folder):
    with new_checkpoint(folder, 3, group) as path:
        found = [*folder.iterdir()]
        group.barrier()
        path.mkdir(exist_ok=True)
        (path / f"{group.rank}").touch()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_folder_for_checkpoints_is_made_where_none_is_and_tidied(pools, ranks, tmp_path):
    folder = tmp_path / "runs/first"
    assert pools[ranks](write_a_file, folder) == [[]] * ranks
    (folder / ".step-00000009.partial").mkdir()  # of a run that was killed
    assert pools[ranks](write_a_file, folder) == [[folder / "step-00000003"]] * ranks
    assert [path.name for path in folder.iterdir()] == ["step-00000003"]
    assert len([*folder.glob("*/*")]) == ranks


@pytest.mark.parametrize("name", ["step-00000004-best", "step-00000004.bak", "step-last"])
def test_a_folder_with_a_name_of_the_users_own_is_no_checkpoint(pools, tmp_path, name):
    (tmp_path / name).mkdir()
    pools[2](write_a_file, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {name, "step-00000003"}
    assert pools[2](latest, tmp_path) == [3, 3]


def order_of_changes(group, folder):
    """What is synced, and what is renamed, while a checkpoint is made."""
    events, fsync, rename = [], os.fsync, Path.rename

    def note_sync(descriptor):
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def note_rename(path, target):
        events.append(f"rename {path.name}")
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", note_sync)
        patch.setattr(Path, "rename", note_rename)
        write_a_file(group, folder)
    return events


@pytest.mark.skipif(sys.platform != "linux", reason="names come from /proc")
def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(pools, tmp_path):
    """Its folder is synced too: a file is lost whose entry is only in memory."""
    partial = ".step-00000003.partial"
    events = pools[2](order_of_changes, tmp_path)[0]
    assert events[-3:] == [f"sync {partial}", f"rename {partial}", f"sync {tmp_path.name}"]


def write_one_after_the_other(group, folder):
    with new_checkpoint(folder, 3, group) as path:
        path.mkdir(exist_ok=True)
        time.sleep(0.3 * group.rank)
        (path / f"rank-{group.rank}").touch()
    return sorted(file.name for file in (folder / "step-00000003").iterdir())


def test_a_checkpoint_gets_its_name_when_the_slowest_rank_has_written(pools, tmp_path):
    assert pools[3](write_one_after_the_other, tmp_path) == [["rank-0", "rank-1", "rank-2"]] * 3


def ours_to_torch(group, folder):
    zero = make(group, 3, odd=False)
    learn(zero, 3)
    path = save(zero, folder, 3)
    model, optimizer = shard_by_torch(group)
    learn_by_torch(model, optimizer, 1, seed=7)
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": states}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    learn(zero, 3)
    learn_by_torch(model, optimizer, 3)
    theirs = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return [(value - theirs[name]).abs().max().item() for name, value in zero.full_parameters()]


def torch_to_ours(group, folder):
    model, optimizer = shard_by_torch(group)
    learn_by_torch(model, optimizer, 3)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=folder)
    zero = make(group, 3, odd=False)
    load_path(zero, folder)
    learn(zero, 3)
    learn_by_torch(model, optimizer, 3)
    theirs = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return [(value - theirs[name]).abs().max().item() for name, value in zero.full_parameters()]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("way", [ours_to_torch, torch_to_ours])
def test_fsdp_goes_on_where_we_stopped_and_the_reverse(pools, tmp_path, way):
    for apart in pools[3](way, tmp_path / "there"):
        assert len(apart) > 5
        assert max(apart) < 1e-5


def save_for_one(group, folder):
    zero = make(group, 3)
    learn(zero, 2)
    save(zero, folder, 2)
    return full_state_dict(zero)


def test_one_process_reads_it_without_any_rank_and_the_full_state_is_on_rank_0(pools, tmp_path):
    whole, *others = pools[3](save_for_one, tmp_path)
    assert others == [{}, {}]
    model = Mixed()
    read = {"model": model.state_dict()}
    dcp.load(read, checkpoint_id=tmp_path / "step-00000002")
    assert read["model"].keys() == whole.keys() == model.state_dict().keys()
    assert all(torch.equal(read["model"][name], whole[name]) for name in whole)
    model.load_state_dict(whole)


def full_before_a_step(group):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    zero = Zero1(model, torch.optim.SGD, group, lr=0.1)
    whole = full_state_dict(zero)
    before = {name: value.clone() for name, value in whole.items()}
    model(torch.randn(8, 2) + 5).sum().backward()
    zero.step()
    return all(torch.equal(whole[name], before[name]) for name in before), len(before)


def test_the_full_state_is_a_copy_that_later_steps_leave_as_it_is(pools):
    assert pools[2](full_before_a_step) == [(True, 7), (True, 0)]


def peak_of_full(group):
    model = make_network(width=256, depth=12)
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    with MemoryUse(zero.tensors) as use:
        full_state_dict(zero)
    loose = {k: v for k, v in use.peak.items() if k not in zero.tensors()}
    return sum(loose.values()), max(unit.layout.size for unit in zero.units) * 4


def test_the_full_state_is_never_whole_on_the_other_ranks(pools):
    (first, _), *others = pools[3](peak_of_full)
    for loose, unit in others:
        assert loose <= unit
    assert first > 10 * others[0][1]


def hosts_save(group, folder):
    inside, between = mesh(group, 2)
    model = make_network(width=9)
    zero = HSDP(model, torch.optim.Adam, inside, between, lr=0.01)
    train(model, zero.step, batches(1797, 8, 2), 8.0)
    assert save(zero, folder, 2).is_dir()
    before = [unit.shard.clone() for unit in zero.units]
    for unit in zero.units:
        unit.shard.zero_()
    load(zero, folder)
    return all(torch.equal(a, unit.shard) for a, unit in zip(before, zero.units, strict=True))


def test_every_host_calls_save_and_load_and_one_writes(pools, tmp_path):
    assert pools[4](hosts_save, tmp_path) == [True] * 4


def save_extra_state(group, folder):
    class Counts(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

    save(Zero1(Counts(2, 2), torch.optim.Adam, group, lr=0.01), folder, 1)


def test_a_modules_extra_state_is_not_lost_in_silence(pools, tmp_path):
    with pytest.raises(RankError, match="module: _extra_state is not a tensor: save it yourself"):
        pools[2](save_extra_state, tmp_path)


# --- what goes wrong


def refused(group, folder, change):
    model = Mixed()
    optimizer = torch.optim.AdamW
    if change == "bigger":
        model.embed = nn.Linear(4, 7)
    if change == "more":
        model.more = nn.Linear(2, 2)
    if change == "dtype":
        model.embed.double()
    if change == "optimizer":  # of the same settings and states
        optimizer = torch.optim.Adam
    groups = None if change == "groups" else groups_of(model)
    zero = Zero3(model, optimizer, group, param_groups=groups, lr=0.05)
    before = [unit.shard.clone() for unit in zero.units]
    try:
        load(zero, folder, 4 if change == "step" else None)
    except (ValueError, FileNotFoundError) as error:
        assert all(torch.equal(a, unit.shard) for a, unit in zip(before, zero.units, strict=True))
        assert not zero.optimizer.state
        return str(error)
    return "loaded"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "bigger",
            "of another model: embed.weight is torch.float32[7, 3] there, torch.float32[7, 4] here",
        ),
        ("dtype", "embed.bias is torch.float32[7] there, torch.float64[7] here"),
        ("more", "is of another model: more.bias is missing there, torch.float32[2] here"),
        ("optimizer", "is of another optimizer: AdamW, here Adam"),
        ("groups", "group 0 of param_groups has other parameters there"),
        ("step", "no checkpoint of step 4 is in it (steps: 3)"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(pools, tmp_path, change, message):
    pools[2](train_and_save, 1, tmp_path)
    for said in pools[2](refused, tmp_path, change):
        assert message in said


class Remembers(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = "something"
        return super().step(closure)


def odd_state(group, folder):
    zero = Zero1(make_network(width=4), Remembers, group, partition="parameter", lr=0.1)
    train(zero.module, zero.step, batches(1797, 4, 1), 4.0)
    save(zero, folder, 1)


def test_a_state_that_is_no_tensor_is_named(pools, tmp_path):
    with pytest.raises(RankError, match=r"its state 'seen' of .* is not a tensor"):
        pools[2](odd_state, tmp_path)
    assert not steps(tmp_path)


def adam_by_torch_to_others(group, folder):
    model = make_network(width=9)
    fully_shard(model, mesh=init_device_mesh("cpu", (group.size,)))
    optimizer = torch.optim.Adam(model.parameters())
    learn_on_digits(model, lambda: (optimizer.step(), optimizer.zero_grad()))
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=folder)
    load_path(Zero3(make_network(width=9), torch.optim.Adam, group), folder)
    said = []
    for other in (torch.optim.AdamW, torch.optim.SGD):
        with pytest.raises(ValueError, match="is of another optimizer") as refused:
            load_path(Zero3(make_network(width=9), other, group), folder)
        said.append(str(refused.value))
    return said


def learn_on_digits(model, step):
    train(model, step, batches(1797, 8, 1), 8.0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_optimizer_of_fsdp_is_known_by_its_settings(pools, tmp_path):
    for decoupled, others in pools[2](adam_by_torch_to_others, tmp_path / "there"):
        assert "AdamW has no decoupled_weight_decay=False" in decoupled
        assert "SGD has no amsgrad, betas" in others


def copied_before_every_change(group, folder, copies):
    """Save step 1 twice; before each change of names in the folder, copy it: what a kill leaves."""
    zero = Zero3(make_network(width=4), torch.optim.SGD, group, lr=0.1)
    save(zero, folder, 1, note="first")
    changes = {name: getattr(os, name) for name in ("rename", "replace", "unlink", "rmdir")}

    def copying(change):
        def copy_first(*args, **kwargs):
            shutil.copytree(folder, copies / f"{len([*copies.glob('*')]):02}")
            return change(*args, **kwargs)

        return copy_first

    with pytest.MonkeyPatch.context() as patch:
        copies.mkdir()
        for name, change in changes.items():
            patch.setattr(os, name, copying(change))
        save(zero, folder, 1, note="second")
    notes = []
    for copy_ in [*sorted(copies.iterdir()), folder]:
        notes.append(load(zero, copy_)["note"])
        save(zero, copy_, 2)
        assert sorted(path.name for path in copy_.iterdir()) == ["step-00000001", "step-00000002"]
        assert load(zero, copy_, 1)["note"] == notes[-1], "the next save tidies, and loses nothing"
    return notes


def test_a_kill_at_any_change_of_a_second_save_of_a_step_leaves_one_whole(pools, tmp_path):
    (notes,) = pools[1](copied_before_every_change, tmp_path / "kept", tmp_path / "copies")
    assert len(notes) > 5
    assert notes == sorted(notes), "first, and from some change on second"
    assert set(notes) == {"first", "second"}


FOREVER = """
import sys
import torch
from distributed.zero.checkpoint import save
from distributed.workbench.training import make_network
from distributed.launching import launch
from distributed.zero import Zero3

def forever(group, folder):
    zero = Zero3(make_network(width=400, depth=4), torch.optim.SGD, group, lr=0.1, momentum=0.9)
    for step in range(1, 10_000):
        for unit in zero.units:
            unit.shard.fill_(step)
        for _ in range(2):
            save(zero, folder, step, done=step)

if __name__ == "__main__":
    launch(forever, sys.argv[1], ranks=2, device="cpu")
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_last_checkpoint_whole(tmp_path):
    script = tmp_path / "forever.py"
    script.write_text(FOREVER)
    moments, folder, last = random.Random(3), tmp_path / "kept", 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            env={**os.environ, "PYTHONPATH": str(CODE)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while [*steps(folder)][-1:] in ([], [last]) and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(moments.random() * 0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)  # ranks see that their parent is gone
        found = [*steps(folder)]
        assert found, "nothing was saved within a minute"
        model = {"model": make_network(width=400, depth=4).state_dict(), "extra": {"done": None}}
        for step in (found[0], found[-1]):
            read = copy.deepcopy(model)
            dcp.load(read, checkpoint_id=steps(folder)[step])
            (extra,) = read["extra"]
            assert extra["done"] == step
            assert all((value == step).all() for value in read["model"].values())
        last = found[-1]


# --- one rule for what ranks do not share, one choice of the step


def with_buffers_of_its_own(group, stage, folder):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)))
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    for buffer in model.buffers():
        buffer.fill_(group.rank + 5)  # as if each rank had seen other rows
    whole = full_state_dict(zero)
    save(zero, folder, 1)
    for buffer in model.buffers():
        buffer.fill_(-1)
    load(zero, folder)
    names = [name for name, _ in model.named_buffers()]
    loaded = {buffer.unique().item() for buffer in model.buffers()}
    return loaded, {whole[name].unique().item() for name in names if whole}


@pytest.mark.parametrize("stage", STAGES)
def test_buffers_that_ranks_do_not_share_are_rank_0s_in_every_file(pools, tmp_path, stage):
    results = pools[3](with_buffers_of_its_own, stage, tmp_path)
    assert [loaded for loaded, _ in results] == [{5.0}] * 3
    assert [whole for _, whole in results] == [{5.0}, set(), set()]


def with_a_stale_listing(group, folder, seen):
    """Rank 1's storage shows it `seen` of what is there, as NFS can."""
    zero = Zero2(make_network(width=4), torch.optim.SGD, group, lr=0.1)
    for step in (1, 2):
        train(zero.module, zero.step, batches(1797, 8, 1), 8.0)
        save(zero, folder, step, done=step)
    shown = checkpoint.steps
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == 1:
            stale = lambda folder: dict([*shown(folder).items()][:seen])  # noqa: E731
            patch.setattr(checkpoint, "steps", stale)
        return latest(group, folder), load(zero, folder)["done"]


def hosts_with_stale_listings(group, folder):
    """The second of two hosts does not see the last step."""
    inside, between = mesh(group, 2)
    zero = HSDP(make_network(width=4), torch.optim.SGD, inside, between, lr=0.1)
    for step in (1, 2):
        save(zero, folder, step, done=step)
    shown = checkpoint.steps
    with pytest.MonkeyPatch.context() as patch:
        if between.rank:
            stale = lambda folder: dict([*shown(folder).items()][:1])  # noqa: E731
            patch.setattr(checkpoint, "steps", stale)
        return load(zero, folder)["done"]


def test_hosts_of_hsdp_read_one_step(pools, tmp_path):
    assert pools[4](hosts_with_stale_listings, tmp_path) == [2] * 4


@pytest.mark.parametrize("seen", [0, 1])
def test_rank_0_chooses_the_step_for_all(pools, tmp_path, seen):
    """Two ranks that read different steps would train a model of two halves."""
    assert pools[2](with_a_stale_listing, tmp_path, seen) == [(2, 2)] * 2


def nothing_there(group, folder):
    return latest(group, folder)


def test_all_ranks_hear_that_there_is_no_checkpoint(pools, tmp_path):
    assert pools[2](nothing_there, tmp_path) == [None] * 2


def with_a_tensor_as_rate(group, folder, saved, loaded):
    model = nn.Linear(2, 2)
    zero = Zero1(model, torch.optim.Adam, group, lr=saved)
    model(torch.ones(1, 2)).sum().backward()
    zero.step()
    save(zero, folder, 1)
    other = Zero1(nn.Linear(2, 2), torch.optim.Adam, group, lr=loaded)
    load(other, folder)
    return float(other.param_groups[0]["lr"]), type(other.param_groups[0]["lr"])


def states_after_load(group, stage, folder):
    zero = make(group, stage)
    save(zero, folder, 0)
    learn(zero, 2)
    load(zero, folder)
    kept = [state for state in zero.optimizer.state.values() if state]
    learn(zero, 1)
    return kept, {name: value.clone() for name, value in zero.full_parameters()}


@pytest.mark.parametrize("stage", STAGES)
def test_loading_what_has_no_states_yet_drops_those_of_the_steps_since(pools, tmp_path, stage):
    def once(group):
        zero = make(group, stage)
        learn(zero, 1)
        return {name: value.clone() for name, value in zero.full_parameters()}

    expected = pools[2](once)[0]
    for kept, found in pools[2](states_after_load, stage, str(tmp_path)):
        assert kept == []
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def stepped_after_load(group, stage, folder, backward_before):
    zero = make(group, stage)
    learn(zero, 1)
    save(zero, folder, 1)
    if backward_before:
        zero.module(torch.ones(8, 3)).sum().backward()
    load(zero, folder)
    zero.module(torch.full((8, 3), 0.5)).square().mean().backward()
    zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


@pytest.mark.parametrize("stage", STAGES)
def test_loading_drops_the_gradients_of_a_pass_before_it(pools, tmp_path, stage):
    folders = [str(tmp_path / name) for name in ("with", "without")]
    found, expected = (
        pools[2](stepped_after_load, stage, folder, before)
        for folder, before in zip(folders, (True, False), strict=True)
    )
    for mine, right in zip(found, expected, strict=True):
        for name, value in right.items():
            torch.testing.assert_close(mine[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("loaded", [0.5, torch.tensor(0.5)], ids=["into a number", "a tensor"])
@pytest.mark.parametrize("saved", [0.25, torch.tensor(0.25)], ids=["a number", "a tensor"])
def test_a_learning_rate_can_be_a_tensor(pools, tmp_path, saved, loaded):
    results = pools[2](with_a_tensor_as_rate, tmp_path, saved, loaded)
    assert results == [(0.25, type(saved))] * 2
