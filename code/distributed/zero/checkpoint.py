"""Checkpoints of shards: every rank writes what it has, and any number of ranks reads it again.

    rank r: W[s], states[s] → boxes of parameters → one file of each rank      save
    files → the boxes that the shards of another number of ranks need          load

Files are those of `torch.distributed.checkpoint`, which PyTorch's FSDP writes and reads too.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.zero.boxes import Boxed
from distributed.zero.checkpoint_folder import (
    as_rank_0_found,
    latest,
    new_checkpoint,
    path_of,
    steps,
)
from distributed.zero.sharded import ShardedOptimizer

GROUPS, CLASS, SCALARS = "optim.param_groups.", "about.optimizer", "about.scalars"
NOTES = GROUPS, CLASS, SCALARS, "extra."
DECAY = "decoupled_weight_decay"
# What torch's learning-rate schedulers note in a group, beside the optimizer's own settings.
OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")


def state(zero: ShardedOptimizer) -> dict[str, dict[str, Any]]:
    """What this rank has of everything, on its own memory: to be saved, or to be written into.

    model: name → parameter, in the dtype of shards, or buffer; optim: "state.NAME.KEY" and
    "param_groups.NUMBER.SETTING", the names that PyTorch's FSDP gives them. Raises ValueError for
    an optimizer that keeps something else than tensors.
    """
    zero.collect()
    found: dict[str, dict[str, Any]] = {"model": {}, "optim": {}}

    def add(part: str, name: str, like: nn.Parameter, of: slice, here: torch.Tensor) -> None:
        found[part].setdefault(name, Boxed(like.shape, here.dtype)).add(of, here)

    for unit in zero.units:
        for parameter, of, at in unit.layout.pieces(zero.group.rank):
            add("model", zero.names[parameter], parameter, of, unit.shard[at])
    in_units = {parameter for unit in zero.units for parameter in unit.layout.parameters}
    for name, tensor in tensors_of(zero.module).items():
        if tensor not in in_units:
            found["model"][name] = tensor.detach()  # whole on every rank: buffers, what is frozen
        elif zero.names[tensor] in found["model"]:  # tied: the same under its other name
            found["model"][name] = found["model"][zero.names[tensor]]
    for name, parameter, of, local, at in zero.parameter_shards():
        for key, value in zero.optimizer.state[local].items():
            if not isinstance(value, torch.Tensor):
                raise ValueError(f"optimizer: its state {key!r} of {name} is not a tensor")
            if value.shape == local.shape and value.dim():
                add("optim", f"state.{name}.{key}", parameter, of, value.view(-1)[at])
            else:
                found["optim"][f"state.{name}.{key}"] = value
    for kind, group in enumerate(zero.optimizer.param_groups):
        for setting, value in {**group, "params": names_in_group(zero, kind)}.items():
            found["optim"][f"param_groups.{kind}.{setting}"] = value
    return found


def tensors_of(module: nn.Module) -> dict[str, Any]:
    """Its parameters and the buffers that are saved, by name. Raises ValueError for extra state."""
    found = module.state_dict(keep_vars=True)
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"module: {name} is not a tensor: save it yourself, as extra")
    return found


def names_in_group(zero: ShardedOptimizer, kind: int) -> list[str]:
    """The parameters of one of the optimizer's groups, on all ranks."""
    return [zero.names[p] for p, i in zero.plan.group_of.items() if i == kind]


def save(zero: ShardedOptimizer, folder: str | Path, step: int, /, **extra: Any) -> Path:
    """Write folder/step-N. Every rank must call it; with HSDP, those of the first host write.

    What rank 0 gives as `extra` is returned by `load`; it may have any names. Buffers that ranks
    do not share, such as running statistics, are rank 0's, as in `full_state_dict` and as DDP has
    it.
    """
    parts = state(zero)
    if zero.group.rank:  # what is whole everywhere is rank 0's: dcp would take some rank's of each
        model = parts["model"].items()
        parts["model"] = {name: part for name, part in model if isinstance(part, Boxed)}
    else:
        about = {"optimizer": type(zero.optimizer).__name__, "scalars": scalar_states(zero)}
        parts |= {"extra": extra, "about": about}
    if not zero.replicas or zero.replicas.rank == 0:  # one host has all of it
        with new_checkpoint(folder, step, zero.group) as path:
            dcp.save(parts, checkpoint_id=path, process_group=zero.group.backend)
    if zero.replicas:
        zero.replicas.barrier()
    return path_of(folder, step)


def load(zero: ShardedOptimizer, folder: str | Path, step: int | None = None) -> dict[str, Any]:
    """Read folder/step-N, by default the last, and return `extra`. Every rank must call it.

    Any number of ranks can have saved it, and any stage. Raises FileNotFoundError if it is not
    there, ValueError if it is of another model or optimizer; then nothing is changed.
    """
    found = steps(folder)
    for group in (zero.replicas, zero.group):  # with HSDP the hosts agree, then their ranks
        found = as_rank_0_found(found, folder, group) if group else found
    if not found or step not in (None, *found):
        which = "checkpoint" if step is None else f"checkpoint of step {step}"
        there = ", ".join(map(str, found)) or "none"
        raise FileNotFoundError(f"folder={str(folder)!r}: no {which} is in it (steps: {there})")
    return load_path(zero, found[max(found) if step is None else step])


@torch.no_grad()
def load_path(zero: ShardedOptimizer, path: str | Path) -> dict[str, Any]:
    """Read the checkpoint at this very path, which PyTorch's FSDP can have saved; see `load`."""
    about = dcp.FileSystemReader(path).read_metadata()
    saved: dict[str, Any] = about.state_dict_metadata
    check_model(zero, saved, path)
    notes = read_notes(zero, saved, path)
    check_optimizer_of(zero, notes, path)
    zero.zero_grad()
    make_states(zero, saved, scalars_in_file(saved, notes))
    parts = {
        part: {key: value for key, value in values.items() if is_shard(f"{part}.{key}", saved)}
        for part, values in state(zero).items()
    }
    dcp.load(parts, checkpoint_id=path, process_group=zero.group.backend)
    for kind, group in enumerate(zero.optimizer.param_groups):
        read = below(f"{GROUPS}{kind}.", notes)
        group.update({**read, "params": group["params"]})
    zero.weights.refresh()
    extra = {key: value for key, value in notes.items() if key.startswith("extra.")}
    # Files have no dicts within dicts: they note, beside each value, where it was.
    return unflatten_state_dict(extra, about.planner_data).get("extra", {})


def read_notes(zero: ShardedOptimizer, saved: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """What a file has beside shards: settings of groups, `extra`, and what it says of itself."""
    notes: dict[str, Any] = {}
    for key, entry in saved.items():
        if key.startswith(NOTES):
            notes[key] = None
            if isinstance(entry, TensorStorageMetadata):  # a learning rate can be one
                notes[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
    dcp.load(notes, checkpoint_id=path, process_group=zero.group.backend)
    return notes


def is_shard(key: str, saved: dict[str, Any]) -> bool:
    """Whether a file has a parameter, a buffer or a state under this name."""
    return key in saved and not key.startswith(NOTES)


def make_states(zero: ShardedOptimizer, saved: dict[str, Any], scalars: set[str]) -> None:
    """Memory for the states of this rank's shards that a file has: zeros, to be read into."""
    zero.optimizer.state.clear()
    for name, _, _, local, _ in zero.parameter_shards():
        whole = saved[f"model.{name}"].size
        for key, entry in below(f"optim.state.{name}.", saved).items():
            is_elementwise = entry.size == whole and key not in scalars
            size = local.shape if is_elementwise else entry.size
            made = torch.zeros(size, dtype=entry.properties.dtype, device=local.device)
            zero.optimizer.state[local].setdefault(key, made)


def scalar_states(zero: ShardedOptimizer) -> list[str]:
    """Keys of the states that are one element for a whole parameter, such as the count of steps."""
    states = [(local, zero.optimizer.state[local]) for _, _, _, local, _ in zero.parameter_shards()]
    return sorted({key for local, of in states for key in of if of[key].dim() < local.dim()})


def scalars_in_file(saved: dict[str, Any], notes: dict[str, Any]) -> set[str]:
    """`scalar_states` of whoever saved it. It decides only for parameters without dimensions.

    Of those, a count of steps and a momentum have one shape, so `save` notes which is which.
    PyTorch does not. In its files, a key is one of them where a matrix has a state without
    dimensions under it.
    """
    if SCALARS in notes:
        return set(notes[SCALARS])
    found = set()
    for name_and_key, entry in below("optim.state.", saved).items():
        name, key = name_and_key.rsplit(".", 1)
        if saved[f"model.{name}"].size and not entry.size:
            found.add(key)
    return found


def below(prefix: str, saved: dict[str, Any]) -> dict[str, Any]:
    """What has names with this prefix, by the rest of its name."""
    return {key.removeprefix(prefix): v for key, v in saved.items() if key.startswith(prefix)}


def check_model(zero: ShardedOptimizer, saved: dict[str, Any], path: str | Path) -> None:
    """Raise ValueError, naming the first difference, if it is of another model, or other dtypes.

    What is frozen may have another dtype: under a `param_dtype`, stages 1 and 2 keep it as it was
    cast, and stage 3 as it came.
    """
    there = {k: f"{v.properties.dtype}{list(v.size)}" for k, v in below("model.", saved).items()}
    dtypes = {p: unit.layout.dtype for unit in zero.units for p in unit.layout.parameters}
    here = {}
    for name, tensor in tensors_of(zero.module).items():
        here[name] = f"{dtypes.get(tensor, tensor.dtype)}{list(tensor.shape)}"
        if tensor in zero.frozen and name in there:
            kept = saved[f"model.{name}"].properties.dtype
            here[name] = f"{kept}{list(tensor.shape)}"
    for name in sorted(there.keys() | here.keys()):
        read, wanted = there.get(name, "missing"), here.get(name, "missing")
        if read != wanted:
            raise ValueError(f"{path} is of another model: {name} is {read} there, {wanted} here")


def check_optimizer_of(zero: ShardedOptimizer, notes: dict[str, Any], path: str | Path) -> None:
    """Raise ValueError if a checkpoint is of another optimizer, or of other groups."""
    here, there = type(zero.optimizer).__name__, notes.get(CLASS)
    if there not in (None, here):
        raise ValueError(f"{path} is of another optimizer: {there}, here {here}")
    for kind, group in enumerate(zero.optimizer.param_groups):
        read = below(f"{GROUPS}{kind}.", notes)
        unknown = read.keys() - group.keys() - set(OF_SCHEDULES)
        if read.get(DECAY) not in (None, zero.optimizer.defaults.get(DECAY)):
            unknown.add(f"{DECAY}={read[DECAY]}")  # FSDP saves no class, but Adam is not AdamW
        if unknown and there is None:
            has = f"{here} has no {', '.join(sorted(unknown))}"
            raise ValueError(f"{path} is of another optimizer: {has}")
        if read and set(read["params"]) != set(names_in_group(zero, kind)):
            raise ValueError(f"{path}: group {kind} of param_groups has other parameters there")


def full_state_dict(zero: ShardedOptimizer) -> dict[str, torch.Tensor]:
    """The whole model's state dict on rank 0, in its CPU's memory; {} on others.

    The others never hold more than one unit of it. Every rank must call it.
    """
    whole = {name: p.cpu().clone() for name, p in zero.full_parameters() if zero.group.rank == 0}
    if zero.group.rank:
        return {}
    found = {}
    for name, tensor in tensors_of(zero.module).items():
        kept = whole.get(zero.names.get(tensor, ""))
        found[name] = tensor.detach().cpu() if kept is None else kept
    return found


def train_and_save(
    group: Group,
    stage: Callable[..., ShardedOptimizer],
    folder: str,
    batch: int,
    until: int,
    every: int,
) -> list[float]:
    """One rank: go on from the last checkpoint, or begin; losses of the steps that are done now."""
    from distributed.dp import shard
    from distributed.workbench.data import batches
    from distributed.workbench.training import make_network, train

    zero = stage(make_network(seed=group.rank), torch.optim.AdamW, group, lr=1e-2)
    done = load(zero, folder)["done"] if latest(group, folder) else 0
    losses = []
    for step, rows in enumerate(batches(1797, batch, until)):
        if step >= done:
            mine = shard(rows, group.rank, group.size)
            losses += train(zero.module, zero.step, [mine], examples=batch / group.size)
            if (step + 1) % every == 0:
                save(zero, folder, step + 1, done=step + 1)
    return group.all_reduce(torch.tensor(losses, dtype=torch.float64), "avg").tolist()


def main(batch: int = 256, until: int = 20) -> None:
    """Train on 4 ranks with ZeRO-3, go on with 3 ranks and ZeRO-1: one curve."""
    from distributed.zero.stage1 import Zero1
    from distributed.zero.stage2 import Zero2
    from distributed.zero.stage3 import Zero3

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        run = functools.partial(launch, train_and_save, device="cpu")
        first = run(Zero3, folder, batch, until // 2, 5, ranks=4)[0]
        then = run(Zero1, folder, batch, until, 5, ranks=3)[0]
        once = run(Zero2, other, batch, until, until, ranks=2)[0]
    apart = np.abs(np.array(first + then) / once - 1).max()
    print(f"{len(first)} steps on 4 ranks, {len(then)} on 3; last loss {then[-1]:.6f}")
    print(f"in one go on 2 ranks: {once[-1]:.6f}; losses differ by at most {apart:.1e}")
    assert apart < 1e-3


if __name__ == "__main__":
    run_script(main)
