"""DDP in buckets: gradients travel together, while the backward pass computes the next ones.

    buffer[n] = gradient of the first parameter, of the second, …; each `p.grad` is a view of it
    buffer[n]{partial over ranks} → all_reduce(avg) → buffer[n], as soon as it is full

Every message has a fixed cost, so a few large all-reduces cost less than many small ones. But a
bucket can leave only when its last gradient is ready, so a single bucket would leave too late.
Gradients become ready from the last layer to the first. Buckets are filled in that order, and each
is sent as soon as it is full, during the rest of the backward pass (Li et al. 2020, §3.2).
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.replicas import broadcast_module
from distributed.runtime.hooks import call_last, refuse_to_copy, view_as
from distributed.runtime.script import run_script


class State(Enum):
    IDLE = auto()  # between two passes: the buffer holds the means of the last one
    FILLING = auto()  # in a pass: gradients are missing, or an earlier bucket hasn't left yet
    REDUCING = auto()  # the all-reduce is running: don't touch the buffer


class Bucket:
    """Gradients of one dtype that travel together: IDLE → FILLING → REDUCING → IDLE."""

    def __init__(self, index: int, parameters: list[nn.Parameter], buffer: torch.Tensor):
        self.index, self.parameters, self.buffer = index, parameters, buffer
        parts = buffer.split([p.numel() for p in parameters])
        self.views = {p: view_as(part, p) for p, part in zip(parameters, parts, strict=True)}
        self.state = State.IDLE
        self.missing: set[nn.Parameter] = set()  # parameters without a gradient in this pass
        self.work: Any = None  # what the hook returned, while REDUCING

    def start_pass(self) -> None:
        assert self.state is State.IDLE
        self.state, self.missing = State.FILLING, set(self.parameters)

    @torch.no_grad()  # a pass with create_graph=True would record the copy
    def store(self, parameter: nn.Parameter) -> None:
        """Make p.grad a view of the buffer; if there is no gradient, fill the view with zeros."""
        assert self.state is not State.REDUCING
        view = self.views[parameter]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():  # new, as after every zero_grad()
            view.copy_(parameter.grad)
            parameter.grad = view

    def fill(self, parameter: nn.Parameter) -> None:
        """Record that this parameter's gradient is complete in this pass."""
        assert self.state is State.FILLING
        assert parameter in self.missing, "ready for the second time in one pass"
        self.store(parameter)
        self.missing.remove(parameter)

    def reduce(self, group: Group, hook: "Hook") -> None:
        assert self.state is State.FILLING
        assert not self.missing
        self.state, self.work = State.REDUCING, hook(group, self)

    def wait(self) -> None:
        """When this returns, buffer[n] is the mean over all ranks."""
        assert self.state is State.REDUCING
        work, self.work, self.state = self.work, None, State.IDLE  # also if it raises
        work.wait()


Hook = Callable[[Group, Bucket], Any]  # starts to reduce bucket.buffer; what it returns has wait()


def all_reduce_hook(group: Group, bucket: Bucket) -> Any:
    """buffer[n]{partial over ranks} → buffer[n], the mean, made in the gradients' dtype.

    The sum is rounded to that dtype N − 1 times; float16 is divided by about √N before it and by
    the rest after it, so that neither large gradients overflow nor small ones vanish (`divisors`
    in `runtime/arrays.py`). A mean in bfloat16, 8 bits of precision, is off by at most N/256 of the
    mean of the magnitudes. Complex gradients are reduced as pairs of real ones.
    """
    buffer = bucket.buffer
    real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    return group.all_reduce(real, "avg", async_op=True)


def fill_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: float, first_bucket_bytes: float
) -> list[list[nn.Parameter]]:
    """Split parameters, in this order, into lists of one dtype and at most `bucket_bytes` each.

    The first list can be smaller (`first_bucket_bytes`), so that communication starts early. A
    parameter that is larger than a bucket gets a list to itself.
    """
    lists: list[list[nn.Parameter]] = []
    last: dict[torch.dtype, list[nn.Parameter]] = {}  # the open list of each dtype
    free: dict[torch.dtype, float] = {}  # bytes that the open list can still hold
    for parameter in parameters:
        dtype = parameter.dtype
        if dtype not in last or parameter.nbytes > free[dtype]:
            free[dtype] = bucket_bytes if lists else min(first_bucket_bytes, bucket_bytes)
            last[dtype] = []
            lists.append(last[dtype])
        last[dtype].append(parameter)
        free[dtype] -= parameter.nbytes
    return lists


class Reducer:
    """Sends buckets in one order on every rank, each as soon as it is full."""

    def __init__(self, buckets: list[Bucket], group: Group, hook: Hook = all_reduce_hook):
        self.buckets, self.group, self.hook = buckets, group, hook
        self.bucket_of = {p: bucket for bucket in buckets for p in bucket.parameters}
        self.sent = 0  # buckets[:sent] have left in this pass

    def start_pass(self) -> None:
        for bucket in self.buckets:
            bucket.start_pass()

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        self.bucket_of[parameter].fill(parameter)
        self.reduce_full_buckets()

    def reduce_full_buckets(self) -> None:
        # In order, even if a later one is full first: reductions are matched by their order.
        while self.sent < len(self.buckets) and not self.buckets[self.sent].missing:
            self.buckets[self.sent].reduce(self.group, self.hook)
            self.sent += 1

    def missing(self) -> list[nn.Parameter]:
        return [p for bucket in self.buckets for p in bucket.parameters if p in bucket.missing]

    def finish_pass(self) -> None:
        """Wait for all buckets: when this returns, the optimizer may read the gradients."""
        for bucket in self.buckets:
            if bucket.state is State.REDUCING:  # else waiting for it may be what raised
                bucket.wait()
        self.sent = 0

    def abandon_pass(self) -> None:
        """After a backward pass that raised: drop its gradients, so the next pass starts clean."""
        if not self.sent and self.buckets[0].state is State.IDLE:  # before the first gradient came
            self.start_pass()
        for bucket in self.buckets:  # ranks may have sent different numbers: now all send the rest
            bucket.missing.clear()
        self.reduce_full_buckets()
        self.finish_pass()
        for parameter in self.bucket_of:
            parameter.grad = None


class BucketedDDP(nn.Module):
    """`module` on every rank of `group`, with gradients averaged in every backward pass.

    Gradients are views of buckets of up to `bucket_bytes`. The first one is smaller, so that
    communication starts early. Means are computed in the gradients' dtype (`all_reduce_hook`). The
    default `group` is the default process group. RuntimeError, at the end of the backward pass,
    names the parameters that got no gradient. A pass that raises after its first gradient has to
    raise on every rank: the next forward pass drops what it computed, and the step starts again.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        bucket_bytes: int = 25_000_000,
        first_bucket_bytes: int = 1_000_000,
    ):
        super().__init__()
        self.module, self.group = module, group or Group.default()
        broadcast_module(module, self.group)
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        in_backward_order = [*reversed(self.names)]  # roughly; DistributedDataParallel records it
        buckets: list[Bucket] = []
        for ps in fill_buckets(in_backward_order, bucket_bytes, first_bucket_bytes):
            buffer = self.group.empty(sum(p.numel() for p in ps), ps[0].dtype)
            buckets.append(Bucket(len(buckets), ps, buffer))
        self.reducer = Reducer(buckets, self.group)
        self.in_backward = False  # from the first gradient of a pass until all are means
        self.hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in self.names]

    __getstate__ = refuse_to_copy

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.in_backward:  # the last pass raised
            self.reducer.abandon_pass()
            self.in_backward = False
        call_last(self.hooks)
        return self.module(*args, **kwargs)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        """Called by autograd when this parameter's gradient is complete."""
        if not self.in_backward:  # the first of this pass: ask for a call after the last
            self.in_backward = True
            self.reducer.start_pass()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self.reducer.gradient_ready(parameter)

    def _finish(self) -> None:
        """Called by autograd when the backward pass is over."""
        if missing := self.reducer.missing():
            names = ", ".join(sorted(self.names[p] for p in missing))
            raise RuntimeError(f"no gradient came for {names}: leave them out of the module")
        self.reducer.finish_pass()
        self.in_backward = False


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train in buckets: the losses of training by hand, in fewer and larger messages."""
    from distributed.workbench.training import show_wrapper

    def wrap(module: nn.Module, group: Group) -> BucketedDDP:
        return BucketedDDP(module, group, bucket_bytes=20_000)

    show_wrapper(wrap, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
