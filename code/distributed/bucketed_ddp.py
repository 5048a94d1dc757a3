"""DDP in buckets: gradients travel together, while the backward pass computes the next ones.

    dW[...]{partial over ranks} → bucket → all_reduce(avg) → dW[...], a view of the bucket

Gradients appear from the last layer to the first. Buckets are filled in that order, and each is
sent as soon as it is full, beside the rest of the backward pass (Li et al. 2020, §3.2).
"""

from typing import Any

import torch
from torch import nn

from distributed import Group, launch
from distributed.buckets import Bucket, Hook, State, all_reduce_hook, fill_by_dtype
from distributed.replicas import broadcast_module, refuse_to_copy
from distributed.runtime.script import run_script


class Reducer:
    """Sends buckets in one order on every rank, each as soon as it is full."""

    def __init__(self, buckets: list[Bucket], group: Group, hook: Hook = all_reduce_hook):
        self.buckets, self.group, self.hook = buckets, group, hook
        self.bucket_of = {p: bucket for bucket in buckets for p in bucket.parameters}
        self.sent = 0  # buckets[:sent] have left in this pass

    def start_pass(self) -> None:
        self.sent = 0
        for bucket in self.buckets:
            bucket.start_pass()

    def mark_ready(self, parameter: nn.Parameter) -> None:
        self.bucket_of[parameter].mark_ready(parameter)
        self.reduce_full_buckets()

    def reduce_full_buckets(self) -> None:
        # In order, even where a later one is full first: all-reduces match by the order in which
        # they start, and rank 0's second bucket must not be added to rank 1's third.
        while self.sent < len(self.buckets) and not self.buckets[self.sent].missing:
            self.buckets[self.sent].reduce(self.group, self.hook)
            self.sent += 1

    def missing(self) -> list[nn.Parameter]:
        return [p for bucket in self.buckets for p in bucket.parameters if p in bucket.missing]

    def finish_pass(self) -> None:
        """Wait for all buckets: when this returns, the optimizer may read the gradients."""
        for bucket in self.buckets:
            bucket.wait()

    def abandon_pass(self) -> None:
        """Where a backward pass raised: nothing of it may reach the next one."""
        if self.buckets[0].state is State.IDLE:  # it raised before the first gradient came
            self.start_pass()
        for bucket in self.buckets:  # another rank may have sent more or less: now all send all
            bucket.missing.clear()
        self.reduce_full_buckets()
        self.finish_pass()
        for parameter in self.bucket_of:
            parameter.grad = None


class BucketedDDP(nn.Module):
    """`module` on every rank of `group`, with gradients averaged in every backward pass.

    Gradients are views of buckets of up to `bucket_bytes`. The first one is smaller, so that
    communication starts early. Means are made in the gradients' dtype (`all_reduce_hook`). Without
    a `group` it is the default process group. RuntimeError, at the end of the backward pass, names
    a parameter that got no gradient. A pass that raises after its first gradient has to raise on
    every rank: the next forward pass drops what it computed, and the step begins anew.
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
        in_backward_order = [*reversed(self.names)]  # about: DistributedDataParallel looks
        buckets: list[Bucket] = []
        for ps in fill_by_dtype(in_backward_order, bucket_bytes, first_bucket_bytes):
            buffer = self.group.empty(sum(p.numel() for p in ps), ps[0].dtype)
            buckets.append(Bucket(len(buckets), ps, buffer))
        self.reducer = Reducer(buckets, self.group)
        self.in_backward = False  # from the first gradient of a pass until all are means
        for parameter in self.names:
            parameter.register_post_accumulate_grad_hook(self._mark_ready)

    __getstate__ = refuse_to_copy

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.in_backward:  # the last pass raised
            self.reducer.abandon_pass()
            self.in_backward = False
        return self.module(*args, **kwargs)

    def _mark_ready(self, parameter: nn.Parameter) -> None:
        """Called by autograd when this parameter's gradient is complete."""
        if not self.in_backward:  # the first of this pass: ask for a call after the last
            self.in_backward = True
            self.reducer.start_pass()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self.reducer.mark_ready(parameter)

    def _finish(self) -> None:
        """Called by autograd when the backward pass is over."""
        if missing := self.reducer.missing():
            names = ", ".join(sorted(self.names[p] for p in missing))
            raise RuntimeError(f"no gradient came for {names}: leave them out of the module")
        self.reducer.finish_pass()
        self.in_backward = False


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train in buckets: the losses of training by hand, in fewer and larger messages."""
    from distributed.workbench.ddp_training import train_wrapped

    def wrap(module: nn.Module, group: Group) -> BucketedDDP:
        return BucketedDDP(module, group, bucket_bytes=20_000)

    losses, trace = launch(train_wrapped, wrap, batch, steps, ranks=ranks)[0]
    reduced = sum(span.name.startswith("all_reduce") for span in trace.spans)
    print(f"loss {losses[0]:.6f} → {losses[-1]:.6f}; {reduced / steps:.1f} all-reduces a step")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    run_script(main)
