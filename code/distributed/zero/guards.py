"""Guards: what would go wrong silently behind a ZeRO optimizer's back raises a line instead.

Code written without shards in mind can replace parameters, clip what isn't the gradient, or compute
with values that are on other ranks. Tensors of the classes here refuse that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed.zero.flat_unit import MOVED, placeholder

REFUSED = {
    "parameter": "{name} is not the parameter that was sharded: change the module first, and give "
    "it to a new optimizer",
    "unfrozen": "{name} requires a gradient now, but was frozen when the module was sharded, so "
    "nothing would update it: unfreeze it first, and make the optimizer then",
    "frozen": "{name} requires no gradient now, but was trained when the module was sharded, so "
    "momentum and weight decay would move it on: freeze it first, and make the optimizer then",
    "no gradients": "step() without any gradient on this rank: call backward() first; it has to "
    "reach a parameter of the module itself, as 0 * p.sum() does, and functional_call does not",
    "failed": "the last backward pass raised: call zero_grad() of the optimizer, which drops what "
    "that pass has reduced, and begin the step anew",
    "shards": "shards were written outside of step(), and the module has other values: call "
    "shards_changed() of the optimizer on all ranks, or write in its register_step_post_hook",
    "GradScaler": "GradScaler looks for infinities in whole gradients, and this rank has shards of "
    "their mean: compute in bfloat16, which needs no scaler",
    "clipping": "this gradient is one rank's own, before the mean, so each rank would clip it "
    "otherwise: use the optimizer's clip_grad_norm_, which returns the norm, too",
    "spread": "this gradient is spread over the ranks, and no rank has it whole: use the "
    "optimizer's clip_grad_norm_, which returns the norm, or its full_gradients()",
    "sharded": "{name} is used while its block is sharded, so it has no values: call the block, "
    "leave it out of blocks=, or use the optimizer's full_parameters()",
    "copy": "a module of ZeRO-3 can't be copied or pickled, because this rank has only shards of "
    "it: load the optimizer's full_parameters() into a new module",
}
# What torch.nn.utils calls to clip. For single ranks' gradients it isn't what it is for their mean.
CLIPPING = (
    torch.linalg.vector_norm, torch._foreach_norm, torch.Tensor.clamp_,
    torch._foreach_clamp_min_, torch._foreach_clamp_max_,
)  # fmt: skip
# Functions of torch that need no values. Dynamo calls some of them when it compiles a block again.
DESCRIPTIONS = {
    "__get__", "__set__", "__delete__", "__len__", "size", "dim", "numel", "nelement", "stride",
    "storage_offset", "untyped_storage", "data_ptr", "get_device", "element_size", "is_conj",
    "is_neg", "is_contiguous", "is_floating_point", "is_complex", "_is_view", "zeros_like",
    "empty_like", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook",
    "_has_compatible_shallow_copy_type",
}  # fmt: skip
CONVERSIONS = {"to", "float", "double", "half", "bfloat16", "cpu", "cuda", "type"}


def call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function of torch as on a plain tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


class Guarded:
    """A tensor that is a plain one to functions of torch, unless `check` raises RuntimeError."""

    check: Any

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.check(func, getattr(func, "__name__", ""), args, kwargs)
        return call(func, args, kwargs)


class OwnGradient(Guarded, torch.Tensor):
    """`parameter.grad` from its backward pass until it is reduced: this rank's, not averaged."""

    @classmethod
    def check(cls, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if func in CLIPPING:
            raise RuntimeError(REFUSED["clipping"])


class SpreadGradient(Guarded, torch.Tensor):
    """`parameter.grad` of ZeRO-2 and 3 after it is reduced: its mean is in the shards."""

    nbytes = 0  # the shape alone

    @classmethod
    def of(cls, parameter: nn.Parameter, dtype: torch.dtype) -> "SpreadGradient":
        """In the shape of a parameter, without its memory."""
        return placeholder(parameter, dtype, parameter.device).as_subclass(cls)

    @classmethod
    def check(cls, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if name not in DESCRIPTIONS:
            raise RuntimeError(REFUSED["spread"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"SpreadGradient(shape={list(self.shape)}, dtype={self.dtype})"


class ShardedParameter(Guarded, nn.Parameter):
    """The class of a parameter of ZeRO-3 while its block is sharded; else it is nn.Parameter."""

    name_in_module: str

    @classmethod
    def check(cls, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if name in DESCRIPTIONS:
            return
        used = next(p for p in tree_leaves((args, kwargs)) if isinstance(p, cls))
        message = REFUSED["sharded"]
        if name in CONVERSIONS:
            converted = call(func, args, kwargs)
            if converted is used or not isinstance(converted, torch.Tensor):
                return
            message = MOVED
        raise RuntimeError(message.format(name=used.name_in_module))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"ShardedParameter({self.name_in_module}, shape={list(self.shape)})"

    def __reduce_ex__(self, _: Any) -> Any:
        raise RuntimeError(REFUSED["copy"])

    __deepcopy__ = __reduce_ex__


class Hook:
    """A module's hook, which torch.compile leaves as it is.

    `copy.deepcopy` and pickle copy a module with its hooks. In a copy, such as an average of the
    weights, this one does nothing; with `refuses_copies`, the module cannot be copied at all.
    """

    def __init__(self, hook: Callable[..., None] | None = None, refuses_copies: bool = False):
        self.hook = torch.compiler.disable(hook) if hook else None
        self.refuses_copies = refuses_copies

    def __call__(self, *args: Any) -> None:
        if self.hook:
            self.hook(*args)

    def __reduce__(self) -> Any:
        if self.refuses_copies:
            raise RuntimeError(REFUSED["copy"])
        return Hook, ()


def check_unchanged(
    module: nn.Module, names: Mapping[nn.Parameter, str], frozen: set[nn.Parameter]
) -> None:
    """Raise RuntimeError unless the module has the parameters that it had, as trained as then."""
    now = dict(module.named_parameters())
    for parameter, name in names.items():
        if now.pop(name, None) is not parameter:
            raise RuntimeError(REFUSED["parameter"].format(name=name))
        if parameter.requires_grad == (parameter in frozen):
            change = "unfrozen" if parameter.requires_grad else "frozen"
            raise RuntimeError(REFUSED[change].format(name=name))
    for name in now:
        raise RuntimeError(REFUSED["parameter"].format(name=name))
