"""Sharding plan: which parameters a stage of ZeRO shards, and in which groups.

Every rank must cut up the same parameters in the same way, so what the user gives is compared on
all ranks, and refused by name before any memory is made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from distributed.replicas import check_same_lines, check_same_model
from distributed.runtime.hooks import check_can_be_wrapped

# These update each element by itself, so that a parameter can be cut anywhere.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD",
)  # fmt: skip


class Precision(NamedTuple):
    """FSDP2's policy: gather in `param_dtype`, reduce in `reduce_dtype`, update in neither.

    Shards, the optimizer's states and what is None here keep the dtype of the module's parameters.
    Micro-batches that are reduced one by one add up in it, too. Those of stage 1 and of no_sync()
    add up in `reduce_dtype`, where 400 ones make 256 in bfloat16.
    `Precision(torch.bfloat16)` of a module in float32 is called mixed precision: weights,
    activations and the parameters' messages have 16 bits, while gradients are added up, averaged
    and applied in 32.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None


class ShardingPlan:
    """The parameters that are sharded, and their groups: checked, and alike on all ranks.

    `param_groups` are as torch takes them. Raises TypeError and ValueError for what the functions
    below refuse, and ValueError if ranks differ.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group | None,
        param_groups: Sequence[dict[str, Any]] | None,
        partition: str,
        precision: Precision,
    ):
        check_module(module)
        check_optimizer(optimizer_class, partition)
        check_precision(module, precision)
        self.module, self.optimizer_class, self.partition = module, optimizer_class, partition
        self.precision = precision
        self.group = group or Group.default()
        self.names = {p: name for name, p in module.named_parameters()}
        self.param_groups = check_groups(self.names, param_groups)
        self.group_of = {p: i for i, g in enumerate(self.param_groups) for p in g["params"]}
        check_same_model(module, self.group)
        self.check_same_groups(self.group)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Let the optimizer refuse its settings while the module is still as it was."""
        if not any(p.is_meta for p in self.names):  # a fused optimizer refuses that device
            self.optimizer_class([{**group} for group in self.param_groups], **settings)

    def check_same_groups(self, group: Group) -> None:
        """Raise ValueError where a rank's parameters are in other groups than rank 0's."""
        lines = [
            f"{name}, in group {self.group_of[p]}" if p.requires_grad else f"{name}, frozen"
            for p, name in self.names.items()
        ]
        check_same_lines("parameter", lines, group)


def check_module(module: Any) -> None:
    """Raise TypeError for what has no names, such as `model.parameters()`.

    ValueError for what DDP, FSDP or another such optimizer has already, for sparse gradients, for
    weights that share only their memory, and for complex ones.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module={type(module).__name__}: give the module itself, not its parameters: "
            "Zero1(model, torch.optim.AdamW, lr=1e-3)"
        )
    check_can_be_wrapped(module)
    check_tensors(module)


def check_tensors(module: nn.Module) -> None:
    """Raise ValueError for a trained parameter that is complex, or shares a different one's memory.

    `head.weight.data = emb.weight.data` does that. One parameter with two names is fine.
    """
    at_address: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.requires_grad and tensor.is_complex():
            raise ValueError(
                f"module: {name} is {tensor.dtype}, and ZeRO shards only real parameters: keep "
                "torch.view_as_real of it, and compute with torch.view_as_complex"
            )
        if tensor.numel() and not tensor.is_meta and tensor.layout is torch.strided:
            other, first = at_address.setdefault(tensor.data_ptr(), (name, tensor))
            if first is not tensor and (first.requires_grad or tensor.requires_grad):
                raise ValueError(
                    f"module: {name} and {other} share memory but are different tensors, so "
                    "sharding would separate them: use one parameter in both places, or clone() one"
                )


def check_precision(module: nn.Module, precision: Precision) -> None:
    """Raise ValueError for a dtype that isn't a float's, and for shards of fewer than 32 bits."""
    for name, dtype in precision._asdict().items():
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"{name}={dtype!r}: give a dtype of floats, as torch.bfloat16")
    if precision.param_dtype is None:
        return
    for name, parameter in module.named_parameters():
        dtype = parameter.dtype
        if parameter.requires_grad and dtype.is_floating_point and dtype.itemsize < 4:
            raise ValueError(
                f"param_dtype={precision.param_dtype}: {name} has {dtype} already, so its shards "
                "would have no more digits: give the module in float32"
            )


def check_groups(
    names: Mapping[nn.Parameter, str], param_groups: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Groups as torch takes them, copied: each trained parameter once."""
    for group in param_groups or []:
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(
                f"param_groups: {type(group).__name__} is no group: give dicts, as "
                "[{'params': [...], 'lr': 1e-3}]"
            )
    trained = {p: name for p, name in names.items() if p.requires_grad}
    if not any(p.numel() for p in trained):
        raise ValueError("module: no parameter requires a gradient, so nothing is to be trained")
    groups = [{**g, "params": [*g["params"]]} for g in param_groups or [{"params": trained}]]
    given: set[nn.Parameter] = set()
    for parameter in (p for g in groups for p in g["params"]):
        if parameter not in names:
            raise ValueError("param_groups: give lists of parameters, all of them the module's")
        if parameter in given:
            raise ValueError(f"param_groups: {names[parameter]} is in two groups")
        given.add(parameter)
    for parameter, name in trained.items():
        if parameter not in given:
            raise ValueError(f"param_groups: {name} is in none; freeze it or put it in one")
    return groups


def check_optimizer(optimizer_class: type[torch.optim.Optimizer], partition: str) -> None:
    """Raise ValueError for an optimizer that cannot work on shards."""
    name = optimizer_class.__name__
    if partition not in ("flat", "parameter"):
        raise ValueError(f"partition={partition!r}: choose one of flat, parameter")
    if issubclass(optimizer_class, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise ValueError(f"optimizer_class={name}: it needs all parameters at once, or sparse ones")
    # These very classes: what is derived from them can look at a whole parameter, as LARS does.
    elementwise = [getattr(torch.optim, known) for known in ELEMENTWISE]
    if partition == "flat" and optimizer_class not in elementwise:
        raise ValueError(
            f"optimizer_class={name} may look at a whole parameter, and 'flat' cuts through them: "
            "give partition='parameter'"
        )
