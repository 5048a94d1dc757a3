"""Checkpoints of shards: every rank writes what it has, and any number of ranks reads it again.

    rank r: W[s], states[s] → boxes of parameters → one file of each rank      save
    files → the boxes that the shards of a different number of ranks need      load

Files are those of `torch.distributed.checkpoint`, which PyTorch's FSDP writes and reads too. Their
schema:

    model.NAME                          a parameter, in boxes, or a buffer
    optim.state.NAME.KEY                a state of the parameter NAME
    optim.param_groups.NUMBER.SETTING   a setting of a group
    extra                               what the user gave to `save`
    about.optimizer, about.scalars      the optimizer's class; keys of one element per parameter
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.utils._pytree import tree_map_only

from distributed.checkpoint_folder import as_rank_0_found, new_checkpoint, path_of, steps
from distributed.zero import from_fsdp
from distributed.zero.boxes import Boxed
from distributed.zero.sharded import ShardedOptimizer

MODEL, STATE, GROUPS = "model.", "optim.state.", "optim.param_groups."


class Contents(NamedTuple):
    """The contents of a file. An entry tells a tensor's size and dtype."""

    model: dict[str, Any]  # name → entry
    states: dict[str, dict[str, Any]]  # name of a parameter → key → entry
    groups: dict[str, dict[str, Any]]  # number → setting → value
    optimizer: str | None  # its class; None if PyTorch wrote the file, and didn't note it
    scalars: set[str]  # `scalar_states` of the run that saved it
    extra: dict[str, Any]


def state(zero: ShardedOptimizer) -> dict[str, dict[str, Any]]:
    """This rank's part of everything, on its own memory: to be saved, or to be written into.

    Names are those of PyTorch's FSDP. Raises ValueError for a state that isn't a tensor.
    """
    zero.sync_shards_from_params()
    return {"model": model_state(zero), "optim": optimizer_states(zero) | group_settings(zero)}


def model_state(zero: ShardedOptimizer) -> dict[str, torch.Tensor]:
    """Name → this rank's boxes of a parameter, in the dtype of shards; or what is in no unit."""
    boxed: dict[torch.Tensor, Boxed] = {}
    for unit in zero.units:
        for parameter, param_slice, shard_slice in unit.layout.pieces(zero.group.rank):
            boxed.setdefault(parameter, Boxed(parameter.shape, unit.layout.dtype))
            boxed[parameter].add(param_slice, unit.shard[shard_slice])
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors_of(zero.module).items():
        if tensor in boxed:
            found[name] = boxed[tensor]  # under each of its names, if it is tied
        elif tensor not in zero.unit_of:
            found[name] = tensor.detach()  # whole on every rank: buffers, what is frozen
    return found


def optimizer_states(zero: ShardedOptimizer) -> dict[str, torch.Tensor]:
    """state.NAME.KEY → this rank's boxes of an elementwise state, or the whole of any other."""
    found: dict[str, Any] = {}
    for mine in zero.local:
        for parameter, param_slice, local_slice in mine.pieces:
            for key, value in zero.optimizer.state[mine.parameter].items():
                name = zero.names[parameter]
                if not isinstance(value, torch.Tensor):
                    raise ValueError(f"optimizer: its state {key!r} of {name} is not a tensor")
                whole = f"state.{name}.{key}"
                if value.shape == mine.parameter.shape and value.dim():
                    found.setdefault(whole, Boxed(parameter.shape, value.dtype))
                    found[whole].add(param_slice, value.view(-1)[local_slice])
                else:
                    found[whole] = value
    return found


def group_settings(zero: ShardedOptimizer) -> dict[str, Any]:
    """param_groups.NUMBER.SETTING → value; "params" are names."""
    return {
        f"param_groups.{number}.{setting}": value
        for number, group in enumerate(zero.optimizer.param_groups)
        for setting, value in {**group, "params": names_in_group(zero, number)}.items()
    }


def tensors_of(module: nn.Module) -> dict[str, Any]:
    """Its parameters and the buffers that are saved, by name. Raises ValueError for extra state."""
    found = module.state_dict(keep_vars=True)
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"module: {name} is not a tensor: save it yourself, as extra")
    return found


def names_in_group(zero: ShardedOptimizer, number: int) -> list[str]:
    """The parameters of one of the optimizer's groups, on all ranks."""
    return [zero.names[p] for p, group in zero.plan.group_of.items() if group == number]


def save(zero: ShardedOptimizer, folder: str | Path, step: int, /, **extra: Any) -> Path:
    """Write folder/step-N. Every rank must call it; with HSDP, those of the first host write.

    `load` returns what rank 0 gives as `extra`, which may have any names. Buffers that ranks
    don't share, such as running statistics, are rank 0's, as in `full_state_dict`.
    """
    parts: dict[str, Any] = state(zero)
    if zero.group.rank:  # what is whole everywhere is rank 0's: dcp would take some rank's of each
        model = parts["model"].items()
        parts["model"] = {name: part for name, part in model if isinstance(part, Boxed)}
    else:
        about = {"optimizer": type(zero.optimizer).__name__, "scalars": scalar_states(zero)}
        on_cpu = tree_map_only(torch.Tensor, torch.Tensor.cpu, extra)
        parts |= {"extra": (on_cpu,), "about": about}  # in a tuple, dcp doesn't take dicts apart
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
    contents = read_contents(zero, path)
    check_model(zero, contents, path)
    check_optimizer(zero, contents, path)
    zero.zero_grad()
    make_states(zero, contents)
    parts = state(zero)
    states = {key: part for key, part in parts["optim"].items() if key.startswith("state.")}
    to_read = {"model": parts["model"], "optim": states}
    dcp.load(to_read, checkpoint_id=path, process_group=zero.group.backend)
    for number, group in enumerate(zero.optimizer.param_groups):
        group.update({**contents.groups.get(str(number), {}), "params": group["params"]})
    zero.shards_changed()
    return contents.extra


def read_contents(zero: ShardedOptimizer, path: str | Path) -> Contents:
    """Sort a file's keys by the schema, and read what isn't the model or a state, on every rank."""
    model: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = defaultdict(dict)
    notes: dict[str, Any] = {}
    for key, entry in dcp.FileSystemReader(path).read_metadata().state_dict_metadata.items():
        if key.startswith(MODEL):
            model[key.removeprefix(MODEL)] = entry
        elif key.startswith(STATE):
            name, state = key.removeprefix(STATE).rsplit(".", 1)
            states[name][state] = entry
        elif isinstance(entry, TensorStorageMetadata):  # a learning rate can be one
            notes[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
        else:
            notes[key] = None
    dcp.load(notes, checkpoint_id=path, process_group=zero.group.backend)
    groups: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in notes.items():
        if key.startswith(GROUPS):
            number, setting = key.removeprefix(GROUPS).split(".", 1)
            groups[number][setting] = value
    scalars = notes.get("about.scalars")
    scalars = from_fsdp.scalar_states(model, states) if scalars is None else set(scalars)
    (extra,) = notes.get("extra", ({},))
    return Contents(model, states, groups, notes.get("about.optimizer"), scalars, extra)


def make_states(zero: ShardedOptimizer, contents: Contents) -> None:
    """Memory for the states of this rank's shards that a file has: zeros, to be read into."""
    zero.optimizer.state.clear()
    for mine in zero.local:
        states = zero.optimizer.state[mine.parameter]
        for name in (zero.names[piece.parameter] for piece in mine.pieces):
            for key, entry in contents.states.get(name, {}).items():
                # A parameter without dimensions has the shape of a count of steps.
                has_shape = entry.size == contents.model[name].size
                is_elementwise = has_shape and key not in contents.scalars
                size = mine.parameter.shape if is_elementwise else entry.size
                dtype, device = entry.properties.dtype, mine.parameter.device
                if key not in states:
                    states[key] = torch.zeros(size, dtype=dtype, device=device)


def scalar_states(zero: ShardedOptimizer) -> list[str]:
    """Keys of the states that are one element for a whole parameter, such as the count of steps."""
    states = [(mine.parameter, zero.optimizer.state[mine.parameter]) for mine in zero.local]
    return sorted({k for p, found in states for k in found if found[k].dim() < p.dim()})


def check_model(zero: ShardedOptimizer, contents: Contents, path: str | Path) -> None:
    """Raise ValueError, naming the first difference, if it is of another model, or other dtypes.

    A frozen tensor may have a different dtype: under a `param_dtype`, stages 1 and 2 keep it as it
    was cast, and stage 3 as it came.
    """
    there = {k: f"{v.properties.dtype}{list(v.size)}" for k, v in contents.model.items()}
    here = {}
    for name, tensor in tensors_of(zero.module).items():
        dtype = zero.unit_of[tensor].layout.dtype if tensor in zero.unit_of else tensor.dtype
        if tensor in zero.frozen and name in there:
            dtype = contents.model[name].properties.dtype
        here[name] = f"{dtype}{list(tensor.shape)}"
    for name in sorted(there.keys() | here.keys()):
        read, wanted = there.get(name, "missing"), here.get(name, "missing")
        if read != wanted:
            raise ValueError(f"{path} is of another model: {name} is {read} there, {wanted} here")


def check_optimizer(zero: ShardedOptimizer, contents: Contents, path: str | Path) -> None:
    """Raise ValueError if a checkpoint is of another optimizer, or of other groups."""
    here, there = type(zero.optimizer).__name__, contents.optimizer
    if there is None:
        from_fsdp.check_settings(zero.optimizer, contents.groups, path)
    elif there != here:
        raise ValueError(f"{path} is of another optimizer: {there}, here {here}")
    for number in range(len(zero.optimizer.param_groups)):
        read = contents.groups.get(str(number))
        if read and set(read["params"]) != set(names_in_group(zero, number)):
            raise ValueError(f"{path}: group {number} of param_groups has other parameters there")


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
        found[name] = tensor.detach().to("cpu", copy=True) if kept is None else kept
    return found
