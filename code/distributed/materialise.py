"""Models on the meta device: shapes without memory, made real one part at a time.

`with torch.device("meta"): model = Model()` takes no memory, however large the model. Each rank
then makes one block, keeps its shard, and lets go of the block before it makes the next.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from distributed.runtime.script import run_script


def hide(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Leave NaN where a parameter's values were: in the same shape, but one element in memory."""
    nothing = torch.full((), torch.nan, dtype=dtype, device=parameter.device)
    parameter.data = nothing.expand(parameter.shape)


def leave_meta(module: nn.Module, device: torch.device) -> dict[nn.Parameter, nn.Parameter]:
    """Put hidden parameters on `device` in the place of those on the meta device: old → new.

    What was tied stays tied. Buffers become real, and are left to whoever initialises.
    """
    new: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, old in part.named_parameters(recurse=False):
            if old.is_meta:
                if old not in new:
                    nothing = torch.full((), torch.nan, dtype=old.dtype, device=device)
                    new[old] = nn.Parameter(nothing.expand(old.shape), old.requires_grad)
                setattr(part, name, new[old])
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(part, name, torch.empty_like(buffer, device=device))
    return new


def by_reset_parameters(module: nn.Module) -> None:
    """Draw a module's own parameters as its class does. ValueError where the class cannot."""
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise ValueError(
            f"{type(module).__name__} is on the meta device and has no reset_parameters(): give "
            "initialise=, a function that fills the parameters of the module it is given"
        )
    reset()


@torch.no_grad()
def make_real(
    module: nn.Module, wanted: Iterable[nn.Parameter], initialise: Callable[[nn.Module], None]
) -> None:
    """Give hidden parameters their first values. The others stay as they are.

    Each part of the module that holds a wanted one is initialised as a whole: what it has beside
    is made for that time, and forgotten.
    """
    left = set(wanted)
    for part in module.modules():
        mine = list(part.parameters(recurse=False))
        if left.isdisjoint(mine):
            continue
        before = {p: p.data for p in mine}
        for p in mine:
            p.data = torch.empty(p.shape, dtype=p.dtype, device=p.device)
        initialise(part)
        for p in mine:
            if p not in left:
                p.data = before[p]
        left.difference_update(mine)
    assert not left, "every parameter is somewhere in the module"


def main() -> None:
    """Make a network of 4 × 100 MB one layer at a time: never more than one layer is real."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(5000, 5000, bias=False) for _ in range(4)))
    leave_meta(model, torch.device("cpu"))
    for name, weight in model.named_parameters():
        make_real(model, [weight], by_reset_parameters)
        spread = weight.std().item()
        hide(weight, weight.dtype)
        print(f"{name}: standard deviation {spread:.6f}, and now {weight[0, 0].item()}")
        assert abs(spread * (3 * 5000) ** 0.5 - 1) < 0.01, "uniform in ±1/√d, as torch.nn.Linear"
        assert weight.untyped_storage().nbytes() == 4


if __name__ == "__main__":
    run_script(main)
