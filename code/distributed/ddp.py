"""DistributedDataParallel: gradients leave in buckets while the backward pass still computes.

    dW[...]{partial over ranks} → bucket → all_reduce(avg) → dW[...], a view of the bucket

The backward pass computes gradients from the last layer to the first. As soon as all gradients of
a bucket are there, its all-reduce starts, and the rest of the backward pass hides it (Li et al.
2020, §3.2).
"""

import contextlib
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from distributed import Group, launch
from distributed.buckets import Hook, all_reduce_hook, fill, make_memory
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace
from distributed.simple_ddp import broadcast_module, make_network, train


class DistributedDataParallel(nn.Module):
    """`module`, whose gradients are averaged over the ranks of `group` in every backward pass.

    `bucket_bytes` is the most that a bucket holds. The first one is smaller, so that communication
    starts early. With `find_unused_parameters`, a parameter without a gradient counts as zero;
    without it, RuntimeError names it at the end of backward. With `static_graph`, the first pass
    learns which gradients come, and how often; later passes must be the same.

    Raises ValueError where the ranks' modules differ, before anything is written, if there is
    nothing to train, if another wrapper has the module already, and for an embedding whose
    gradients are sparse. A gradient that autograd leaves undefined counts as zero. With
    `backward(create_graph=True)` first derivatives alone are averaged, and a warning says so.
    What PyTorch's class has beyond this, such as sparse gradients, is left out: the reference
    (*Modules*) has a list.

    A backward pass that raises has to raise on every rank. What it computed is dropped, and the
    next pass starts without gradients: begin the step anew.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        bucket_bytes: int = 25_000_000,
        first_bucket_bytes: int = 1_000_000,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        static_graph: bool = False,
    ):
        super().__init__()
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes={bucket_bytes}: a bucket holds 1 byte or more")
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("module: no parameter requires a gradient: there is nothing to reduce")
        check_can_be_wrapped(module)
        self.module, self.group = module, group
        self.sizes = bucket_bytes, min(first_bucket_bytes, bucket_bytes)
        self.find_unused_parameters = find_unused_parameters and not static_graph
        self.broadcast_buffers = broadcast_buffers
        self.static_graph = static_graph
        self.learning = static_graph  # until its first pass is over: then all buckets leave
        self.hook: Hook = all_reduce_hook
        self.sync = True  # False within no_sync()
        self.scale = 1.0  # of the mean over all ranks: more than 1 when some have no data left
        self.rebuilt = self.find_unused_parameters  # order of arrival can change then: keep ours
        self.times = dict.fromkeys(self.names, float("inf") if static_graph else 1)  # in a pass
        # Which parameters get the mean: those that any rank has a gradient for. It is found in the
        # passes where this rank may not use all.
        self.used_by_any = dict.fromkeys(self.names)
        # Autograd holds the callback as long as the backward pass runs, and lets go of it when the
        # pass ends or raises. None between passes; a dead reference once a pass has failed.
        self.end: weakref.ref[Any] | None = None
        broadcast_module(module, group)
        self.memory = make_memory(self.names, group)  # all buckets are parts of it
        self._make_buckets(list(reversed(self.names)))  # about the order in which gradients come
        for parameter in self.names:
            parameter.register_post_accumulate_grad_hook(self._came)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; buffers, such as running statistics, come from rank 0."""
        self._drop_failed_pass()
        if self.sync and self.training:
            self._share_buffers()
        output = self.module(*args, **kwargs)
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn:
                tensor.register_hook(self._begin)
        return output

    def take_part(self) -> None:
        """What a rank without data does while others run forward and backward: give zeros."""
        self._drop_failed_pass()
        self._share_buffers()
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.waiting.clear()
        self._finish()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here add up gradients on this rank, and send nothing."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def register_comm_hook(self, hook: Hook) -> None:
        """Reduce buckets by `hook(group, bucket)` from now on: compressed, or by other ways."""
        self.hook = hook

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own names: what is saved here can be loaded without this wrapper."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Also of PyTorch's wrapper, whose names begin with `module.`, all of them."""
        if state_dict and all(name.startswith("module.") for name in state_dict):
            own = self.module.state_dict().keys()
            if not own & state_dict.keys():  # else it is a part of that name, in ours
                state_dict = {name.removeprefix("module."): x for name, x in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def order(self) -> list[str]:
        """The names of the parameters in the order of their buckets: it decides the last bits."""
        return [self.names[p] for bucket in self.buckets for p in bucket.parameters]

    def use_order(self, names: list[str]) -> None:
        """Fill buckets in this order from now on, as another run did that is to be repeated."""
        parameters = {name: p for p, name in self.names.items()}
        if sorted(names) != sorted(parameters):
            raise ValueError("names: give each parameter that requires a gradient once")
        self.rebuilt = True
        self._make_buckets([parameters[name] for name in names])

    def _share_buffers(self) -> None:
        for buffer in self.module.buffers() if self.broadcast_buffers else ():
            self.group.broadcast(buffer)

    def _make_buckets(self, parameters: list[nn.Parameter]) -> None:
        most, first = self.sizes
        gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
        self.buckets = fill(parameters, self.memory, most, first)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient  # not where it was: other gradients are there now
            self.bucket_of[parameter].take(parameter)
        self._get_ready()

    def _get_ready(self) -> None:
        for bucket in self.buckets:
            bucket.waiting = set(bucket.parameters)
        self.end = None
        self.came: dict[nn.Parameter, int] = {}  # how often each has come, the last at the end
        self.started: list[Any] = []  # handles of the buckets that have left, in order

    def _begin(self, _gradient: Any = None) -> None:
        """Called by autograd when the backward pass reaches an output of the module."""
        self._drop_failed_pass()
        # A reentrant checkpoint is a pass within the pass, with an end of its own: begin outside.
        if self.sync and self.end is None:
            end = self._end
            self.end = weakref.ref(end)
            for parameter in (p for p, times in self.times.items() if times == 0):
                self.bucket_of[parameter].do_without(parameter)
            torch.autograd.Variable._execution_engine.queue_callback(end)

    def _failed(self) -> bool:
        return self.end is not None and self.end() is None

    def _drop_failed_pass(self) -> None:
        """Where the last backward pass raised: wait for what it started, and forget the rest."""
        if not self._failed():
            return
        if self.started:  # ranks may have failed at different places: all of them send all buckets
            for bucket in self.buckets:
                bucket.waiting.clear()
            self._start_what_is_full()
        for handle in self.started:
            handle.wait()
        for parameter in self.names:
            parameter.grad = None
        self._get_ready()

    def _came(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a gradient is complete."""
        if self._failed():  # and neither forward nor _begin was called since
            raise RuntimeError("the last backward pass raised: call the wrapper, not its module")
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise RuntimeError(
                f"{self.names[parameter]} got a sparse gradient, which a bucket cannot hold: make "
                "it dense, with sparse=False"
            )
        if torch.is_grad_enabled():
            warnings.warn(
                "create_graph=True: the gradients of DistributedDataParallel are first derivatives "
                "without a graph; take inner derivatives with torch.autograd.grad",
                stacklevel=2,
            )
        bucket = self.bucket_of[parameter]
        bucket.take(parameter)
        if not self.sync:
            if parameter not in self.used_by_any and not self.find_unused_parameters:
                raise RuntimeError(self._says_got(parameter, 1))
            return
        self._begin()  # if the module was called without the wrapper
        self.came[parameter] = times = self.came.pop(parameter, 0) + 1
        if times > self.times[parameter]:
            raise RuntimeError(self._says_got(parameter, times))
        if times == self.times[parameter]:
            bucket.waiting.discard(parameter)
            self._start_what_is_full()

    def _says_got(self, parameter: nn.Parameter, times: int) -> str:
        advice = "checkpoint with use_reentrant=False, or give static_graph=True"
        if self.static_graph:
            advice = f"static_graph=True, and the first pass had {self.times[parameter]}"
        return f"{self.names[parameter]} got {times} gradients in one backward pass: {advice}"

    def _start_what_is_full(self) -> None:
        # In the same order on every rank, whatever order gradients come in.
        while len(self.started) < len(self.buckets):
            bucket = self.buckets[len(self.started)]
            if bucket.waiting:
                return
            self.started.append(self.hook(self.group, bucket))

    def _end(self) -> None:
        """Called by autograd at the end of the backward pass."""
        if self.came or self.find_unused_parameters:  # else it was for other gradients
            self._finish()
        self.end = None

    def _finish(self) -> None:
        """No more gradients come: send what is left, and wait for what has been started."""
        if self.learning:
            for bucket in self.buckets:
                bucket.waiting -= self.came.keys()
        missing = {p for bucket in self.buckets for p in bucket.waiting}
        finding = self.find_unused_parameters or self.learning
        if missing and not finding:
            names = ", ".join(sorted(self.names[p] for p in missing))
            raise RuntimeError(
                f"no gradient came for {names}: leave them out of the module, or give "
                "find_unused_parameters=True without static_graph"
            )
        for parameter in missing:
            self.bucket_of[parameter].do_without(parameter)
        self._start_what_is_full()
        trace = self.group.trace
        with trace.span("wait", "waiting") if trace else contextlib.nullcontext():
            for handle in self.started:
                handle.wait()
        for bucket in self.buckets if self.scale != 1 else ():
            bucket.flat *= self.scale
        if finding:
            self._find_used()
        for parameter in self.used_by_any:
            parameter.grad = self.bucket_of[parameter].views[parameter]
        order = [*self.came, *(p for p in self.names if p not in self.came)]
        self._get_ready()
        if not self.rebuilt:
            self._rebuild(order)

    def _find_used(self) -> None:
        """What other ranks used has a gradient here too; what nobody used keeps none.

        A gradient may be of an earlier pass, within `no_sync`: so what is there counts, not what
        came.
        """
        mine = [self.came.get(p, 0) for p in self.names]
        have = [int(p.grad is not None) for p in self.names]
        found = torch.tensor([mine, have], device=self.group.device)
        most, used = self.group.all_reduce(found, "max").tolist()
        used_by_any = (p for p, n in zip(self.names, used, strict=True) if n)
        self.used_by_any = dict.fromkeys(used_by_any)
        if self.learning:  # a rank that had no data yet expects what others saw
            self.times = dict(zip(self.names, mine if self.came else most, strict=True))
            self.learning = False

    def _rebuild(self, order: list[nn.Parameter]) -> None:
        """Fill buckets anew in the order in which rank 0's gradients came, as PyTorch does."""
        self.rebuilt = True
        numbers = {p: i for i, p in enumerate(self.names)}
        arrived = torch.tensor([numbers[p] for p in order], device=self.group.device)
        parameters = list(self.names)
        self._make_buckets([parameters[i] for i in self.group.broadcast(arrived).tolist()])


def check_can_be_wrapped(module: nn.Module) -> None:
    """Raise ValueError for a module that is wrapped already, or whose gradients are sparse."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            weight = f"{name}.weight".lstrip(".")
            raise ValueError(f"module: {weight} gets sparse gradients: give it sparse=False")
    for name, parameter in module.named_parameters():
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            if isinstance(getattr(hook, "__self__", None), DistributedDataParallel):
                raise ValueError(
                    f"module: {name} is in a DistributedDataParallel already: use that one, or "
                    "wrap copy.deepcopy(module)"
                )


def train_wrapped(group: Group, batch: int, steps: int) -> tuple[list[float], Trace]:
    """One rank: train the network of the last chapter in small buckets; losses, what happened."""
    from distributed.dp import shard
    from distributed.workbench.data import batches

    module = make_network(seed=group.rank).to(group.device)
    model = DistributedDataParallel(module, group, bucket_bytes=20_000)
    group.trace = trace = Trace(group.rank)
    shards = [shard(rows, group.rank, group.size) for rows in batches(1797, batch, steps)]
    losses = train(model, group, (torch.from_numpy(rows) for rows in shards), average=False)
    group.trace = None
    return group.all_reduce(torch.tensor(losses), op="avg").tolist(), trace


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train with the wrapper: the losses of training by hand, in fewer and larger messages."""
    losses, trace = launch(train_wrapped, batch, steps, ranks=ranks)[0]
    reduced = sum(span.name.startswith("all_reduce") for span in trace.spans)
    print(f"loss {losses[0]:.6f} → {losses[-1]:.6f}; {reduced / steps:.1f} all-reduces a step")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    run_script(main)
