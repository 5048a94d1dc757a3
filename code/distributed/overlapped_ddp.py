"""DDP with overlap: each gradient is sent while the backward pass computes the next one.

    dW[...]{partial over ranks} → all_reduce(avg), asynchronous → dW[...], one for every parameter

Autograd says when a gradient is complete. That is when its all-reduce starts; only the end of the
backward pass waits for all of them.
"""

from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.replicas import broadcast_module
from distributed.runtime.group import Handle
from distributed.runtime.hooks import call_last, refuse_to_copy
from distributed.runtime.script import run_script


class OverlappedDDP(nn.Module):
    """`module` on every rank of `group`, with gradients averaged in every backward pass.

    Means are computed in each gradient's dtype, as `Group.all_reduce` says. Without a `group` it
    is the default process group. Gradients must come in the same order on every rank, and of
    the same parameters. A backward pass that raises has to raise at the same place on every
    rank.
    """

    def __init__(self, module: nn.Module, group: Group | None = None):
        super().__init__()
        self.module, self.group = module, group or Group.default()
        broadcast_module(module, self.group)
        self.under_way: list[Handle] = []  # the all-reduces of this pass; none between two passes
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(self._reduce)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]

    __getstate__ = refuse_to_copy

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._wait()  # for what a backward pass that raised has left
        call_last(self.hooks)
        return self.module(*args, **kwargs)

    def _reduce(self, parameter: nn.Parameter) -> None:
        """Called by autograd when this parameter's gradient is complete."""
        if not self.under_way:  # the first gradient of this pass: ask for a call after the last
            torch.autograd.Variable._execution_engine.queue_callback(self._wait)
        assert parameter.grad is not None, "autograd left this gradient undefined"
        self.under_way.append(self.group.all_reduce(parameter.grad, "avg", async_op=True))

    def _wait(self) -> None:
        """Called by autograd after the last gradient; when it returns, all of them are means."""
        for handle in self.under_way:
            handle.wait()
        self.under_way.clear()


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train with overlap: the losses of training by hand, one message for each parameter."""
    from distributed.workbench.training import show_wrapper

    show_wrapper(OverlappedDDP, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
