"""What would go wrong in silence behind a ZeRO optimizer's back, and is refused in a line instead.

Its parameters are views of buffers, and its gradients are spread over the ranks, but the module
and `parameter.grad` look as they always did. So code that knows nothing of shards can replace
them, or clip what is not the gradient. `REFUSED` lists what is noticed, and what it says.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

REFUSED = {
    "parameter": "{name} is not the parameter that was sharded: change the module first, and give "
    "it to a new optimizer",
    "DDP": "the module is called by PyTorch's DistributedDataParallel, and a ZeRO optimizer "
    "averages gradients as well: call the module itself",
    "unfrozen": "{name} requires a gradient now, but was frozen when the module was sharded, so "
    "nothing would update it: unfreeze it first, and make the optimizer then",
    "frozen": "{name} requires no gradient now, but was trained when the module was sharded, so "
    "momentum and weight decay would move it on: freeze it first, and make the optimizer then",
    "no gradients": "step() without gradients: call backward() first, and note that it doesn't "
    "reach the module's own parameters through functional_call with other tensors",
    "GradScaler": "GradScaler looks for infinities in whole gradients, and this rank has shards of "
    "their mean: compute in bfloat16, which needs no scaler",
    "clipping": "this gradient is one rank's own, before the mean, so each rank would clip it "
    "otherwise: use the optimizer's clip_grad_norm_, which returns the norm, too",
}
# What torch.nn.utils calls to clip: norms that scale, and bounds. None of it is linear, so on the
# gradients of single ranks it is not what it is on their mean.
CLIPPING = (
    torch.linalg.vector_norm, torch._foreach_norm, torch.Tensor.clamp_,
    torch._foreach_clamp_min_, torch._foreach_clamp_max_,
)  # fmt: skip


class OwnGradient(torch.Tensor):
    """`parameter.grad` from its backward pass until it is reduced: this rank's, not averaged.

    A tensor as any other, also for what is written into it, except that it cannot be clipped.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in CLIPPING:
            raise RuntimeError(REFUSED["clipping"])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class HookOfOriginal:
    """A forward hook that does nothing in copies of its module, by `copy.deepcopy` or by pickle.

    An average of the weights starts from such a copy, which has the module's hooks too.
    """

    def __init__(self, hook: Callable[..., Any] | None = None):
        self.hook = hook

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args) if self.hook else None

    def __reduce__(self) -> Any:
        return HookOfOriginal, ()


def check_not_in_torch_ddp(module: nn.Module, _: Any) -> None:
    """Before each forward pass: RuntimeError if PyTorch's DDP runs it, and so averages, too.

    Its hooks are out of Python's sight, but while its forward runs it says so.
    """
    if getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None):
        raise RuntimeError(REFUSED["DDP"])


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
