"""DistributedDataParallel: the buckets of `BucketedDDP`, and what real programs ask for besides.

Parameters that a pass does not use, graphs that stay the same, accumulation, ranks without data,
other ways to reduce, buckets in the order in which gradients really come. None of it changes how a
bucket is filled and sent: that is the `Reducer`'s, and this class decides when to call it.
"""

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NoReturn

import torch
from torch import nn

from distributed import Group
from distributed.bucketed_ddp import Bucket, Hook, Reducer, all_reduce_hook
from distributed.ddp.bucket_memory import BucketMemory, order_of
from distributed.ddp.join import Join, share_optimizer
from distributed.ddp.usage import Usage
from distributed.replicas import broadcast_module, describe
from distributed.runtime.hooks import call_last, check_can_be_wrapped, parts_of
from distributed.runtime.script import run_script


class Phase(Enum):
    IDLE = auto()  # between two backward passes
    BACKWARD = auto()  # since the pass reached an output of the module, or had the first gradient
    LOCAL = auto()  # the same, and so far it reached only outputs of forward passes in no_sync()
    FAILED = auto()  # a pass that reduces raised: the next one drops what it computed


TRANSITIONS = {
    (Phase.IDLE, Phase.BACKWARD),
    (Phase.IDLE, Phase.LOCAL),
    (Phase.LOCAL, Phase.IDLE),
    (Phase.LOCAL, Phase.BACKWARD),
    (Phase.BACKWARD, Phase.IDLE),
    (Phase.BACKWARD, Phase.FAILED),
    (Phase.FAILED, Phase.IDLE),
}


@dataclass
class Pass:
    """Notes of one backward pass while it is LOCAL. `_begin_pass` makes them."""

    stored: list[nn.Parameter] = field(default_factory=list)  # their gradients are in buckets
    came_first: str = ""  # a parameter whose gradient came before any output's, outside no_sync()


class EndOfPass:
    """Callback for the end of a backward pass: calls `finish`, or `fail` if the pass raised.

    Autograd has the only reference to it. It calls it after the last gradient. If the pass raises,
    autograd deletes it uncalled, and no other event tells of that.
    """

    def __init__(self, finish: Callable[[], None], fail: Callable[[], None]):
        self.finish, self.fail = finish, fail
        self.was_called = False

    def __call__(self) -> None:
        self.was_called = True
        try:
            self.finish()
        except BaseException:
            self.fail()
            raise

    def __del__(self) -> None:
        if not self.was_called:
            self.fail()


class DistributedDataParallel(nn.Module):
    """`module`, whose gradients are averaged over the ranks of `group` in every backward pass.

    Without a `group` it is the default process group. A bucket holds up to `bucket_bytes`, the
    first one less, so that communication starts early. Sums and means are made in the gradients'
    dtype (`all_reduce_hook`). With `find_unused_parameters`, a parameter without a gradient counts
    as zero. With `static_graph`, the first pass finds which gradients come, and how often.

    Raises ValueError before anything is written: if ranks' modules differ, if nothing is trained,
    and for what `check_can_be_wrapped` refuses. Raises RuntimeError at the end of a backward pass
    that reached no output of the wrapper, or gave a parameter no gradient.

    Gradient hooks of your own see this rank's gradient, and what they leave in `p.grad` is
    averaged. A backward pass that raises has to raise on every rank: what it computed is dropped,
    except within `no_sync()`, so begin the step again. With `find_unused_parameters`, a pass for
    gradients of inputs alone, as a penalty needs, sends zeros: run it in `no_sync()`. A deep copy
    works with the same group, what `torch.load` reads back with the default one. The reference
    (*Modules*) compares this with PyTorch's class.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
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
        self.module = module
        self.bucket_sizes = bucket_bytes, first_bucket_bytes
        self.broadcast_buffers = broadcast_buffers
        self.usage = Usage(self.names, static_graph, find_unused_parameters)
        # Whether buckets have their final order. Where usage can change, so can the order in which
        # gradients come: then the first guess stays.
        self.has_order = self.usage.find_unused
        self.sync = True  # False within no_sync()
        self.was_synced = True  # what `sync` was in the last forward pass
        self.joining: Join | None = None  # within join()
        self.phase, self.this_pass = Phase.IDLE, Pass()
        # Whether a backward pass may come to our parameters but to none of our outputs: the module
        # returned an object in which tensors may hide, or a gradient with a graph was computed.
        self.has_hidden_graph = False
        # Whether a backward pass made means since the last forward pass, which ends the above.
        self.has_means = False
        self.group = group or Group.default()
        broadcast_module(module, self.group)
        about_as_they_come = [*reversed(self.names)]
        self._prepare(about_as_they_come, all_reduce_hook)

    def _prepare(self, order: list[nn.Parameter], hook: Hook) -> None:
        """Make what belongs to this process, and to these very parameters."""
        self.memory = BucketMemory([*self.names], self.group, *self.bucket_sizes)
        self.layouts = {parameter: layout(parameter) for parameter in self.names}
        self.reducer = Reducer(self.memory.buckets(order), self.group, hook)
        self.hooks = [
            p.register_post_accumulate_grad_hook(self._gradient_ready) for p in self.names
        ]

    def __copy__(self) -> NoReturn:
        raise TypeError("copy.copy would hook the same parameters twice: use copy.deepcopy")

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and `torch.save`: all but what `_prepare` makes, and the moment."""
        state = self.__dict__ | {"order": self.order(), "hook": self.reducer.hook}
        made = "memory", "layouts", "reducer", "hooks"
        moment = "sync", "was_synced", "this_pass", "joining", "phase"
        for name in made + moment:
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        order, hook = state.pop("order"), state.pop("hook")
        super().__setstate__(state)
        self.sync, self.was_synced, self.joining = True, True, None
        self.phase, self.this_pass = Phase.IDLE, Pass()
        self.usage.counts = {}
        parameters = {name: p for p, name in self.names.items()}
        self._prepare([parameters[name] for name in order], hook)

    @property
    def buckets(self) -> list[Bucket]:
        return self.reducer.buckets

    # ------------------------------------------------------------------ what programs call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; buffers, such as running statistics, come from rank 0.

        Within `join` they come from a rank that still has data.
        """
        self._abandon_failed_pass()
        self._check_is_trained_as_wrapped()
        if self.sync and (self.training or (self.joining and torch.is_grad_enabled())):
            if self.joining:
                self.joining.start_step(have_batch=True)
            self._share_buffers()
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled():
            self.was_synced = self.sync
            if self.has_means:
                self.has_hidden_graph = self.has_means = False
            for part in parts_of(output):
                if isinstance(part, torch.Tensor) and part.grad_fn:
                    part.register_hook(self._output_reached if self.sync else self._local_reached)
                elif is_opaque(part):
                    self.has_hidden_graph = True
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward passes of forward passes in here add up gradients on this rank alone.

        As in PyTorch, the forward pass decides, wherever `backward()` is called. A backward pass
        through several of them sends if one of them was outside.
        """
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Iterator[None]:
        """Ranks may make different numbers of steps in here, each of one forward and backward.

        Those that are done wait at the end of the block, and take part with zeros until the last
        one is: then all have its weights and buffers, and its state of `optimizer` if you give one.
        The mean is over all ranks, or with `divide_by_initial_world_size=False` over those that
        still make steps. Gradients stay what this rank's own last step left.
        """
        self.joining = joining = Join(self.group, divide_by_initial_world_size)
        try:
            yield
            self._abandon_failed_pass()
            gradients = self._clone_gradients()
            while joining.start_step(have_batch=False):
                self._take_part_with_zeros()
            self._put_back(gradients)
        finally:
            self.joining = None
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            self.group.broadcast(tensor, root=joining.root)
        if optimizer:
            share_optimizer(optimizer, self.group, joining.root)

    def register_comm_hook(self, hook: Hook) -> None:
        """Reduce buckets by `hook(group, bucket)` from now on: compressed, or by other ways."""
        if not callable(hook):
            raise TypeError(f"hook: give a function hook(group, bucket), not {type(hook).__name__}")
        self.reducer.hook = hook

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own names: what is saved here can be loaded without this wrapper.

        A larger module that has the wrapper inside gets PyTorch's names, which begin with
        `module.`.
        """
        state = super().state_dict(*args, **kwargs)
        is_inside = args or kwargs.get("destination") is not None
        prefix = kwargs.get("prefix", "")
        return state if is_inside else renamed(state, prefix + "module.", prefix)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Also of PyTorch's wrapper. Names in messages begin with `module.`, as there."""
        own = self.module.state_dict().keys()
        pytorchs = {"module." + name for name in own}
        if len(own & state_dict.keys()) >= len(pytorchs & state_dict.keys()):
            state_dict = renamed(state_dict, "", "module.")
        return super().load_state_dict(state_dict, *args, **kwargs)

    def order(self) -> list[str]:
        """The names of the parameters in the order of their buckets: it decides the last bits."""
        return [self.names[p] for bucket in self.buckets for p in bucket.parameters]

    def use_order(self, names: list[str]) -> None:
        """Fill buckets in this order from now on, as another run did that is to be repeated."""
        parameters = {name: p for p, name in self.names.items()}
        if sorted(names) != sorted(parameters):
            raise ValueError("names: give each parameter that requires a gradient once")
        self._use_order([parameters[name] for name in names])

    # ------------------------------------------------------------------ a backward pass

    def _enter(self, phase: Phase) -> None:
        assert (self.phase, phase) in TRANSITIONS, f"{self.phase} → {phase}"
        self.phase = phase

    def _output_reached(self, _gradient: Any = None) -> None:
        """Called by autograd when the backward pass reaches an output of the module."""
        self._begin_pass(Phase.BACKWARD)
        for parameter in self.this_pass.stored:
            self._count(parameter)
        self.this_pass.stored.clear()

    def _local_reached(self, _gradient: Any = None) -> None:
        """The same, of a forward pass in no_sync()."""
        self._begin_pass(Phase.LOCAL)
        self.this_pass.came_first = ""

    def _begin_pass(self, phase: Phase) -> None:
        self._abandon_failed_pass()
        self.has_hidden_graph |= torch.is_grad_enabled()  # create_graph=True
        # A reentrant checkpoint is a pass within the pass, with an end of its own: begin outside.
        if self.phase is Phase.IDLE:
            call_last(self.hooks)
            self.this_pass = Pass()
            end = EndOfPass(self._end_pass, self._fail_pass)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        if (self.phase, phase) in TRANSITIONS:
            self._enter(phase)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a gradient is complete."""
        if self.phase is Phase.FAILED:  # and neither forward nor _output_reached was called since
            raise RuntimeError("the last backward pass raised: call the wrapper, not its module")
        self._check_can_be_reduced(parameter)
        if self.phase is Phase.IDLE:  # an output may still come, as after a penalty on weights
            hidden = self.has_hidden_graph and self.was_synced
            self._begin_pass(Phase.BACKWARD if hidden else Phase.LOCAL)
            self.this_pass.came_first = self.names[parameter] if self.sync else ""
        if self.phase is Phase.LOCAL:
            self.usage.check_may_come(parameter)
            self.reducer.bucket_of[parameter].store(parameter)
            self.this_pass.stored.append(parameter)
        else:
            self._count(parameter)

    def _count(self, parameter: nn.Parameter) -> None:
        if not self.usage.counts:
            self._start_reducing()
        if self.usage.count(parameter):
            self.reducer.gradient_ready(parameter)

    def _start_reducing(self) -> None:
        self.reducer.start_pass()
        for parameter in self.usage.never_used():
            self.reducer.gradient_ready(parameter)

    def _end_pass(self) -> None:
        """Called by autograd at the end of the backward pass."""
        if self.phase is Phase.BACKWARD:
            if self.usage.counts:
                self._finish()
            elif self.usage.find_unused:  # other ranks may have gradients
                self._start_reducing()
                self._finish()
        elif self.this_pass.came_first and not self.has_hidden_graph:
            raise RuntimeError(
                f"a gradient for {self.this_pass.came_first} came in a backward pass that reached "
                "no output of the wrapper: call the wrapper, not its module (PyTorch's "
                "wrapper would leave this gradient as it is, another one on each rank)"
            )
        self._enter(Phase.IDLE)  # a pass without gradients of ours was for others

    def _fail_pass(self) -> None:
        """The backward pass has raised. The sums of a local one stay on this rank."""
        self._enter(Phase.FAILED if self.phase is Phase.BACKWARD else Phase.IDLE)

    def _finish(self) -> None:
        """No more gradients come: reduce what is left, and wait for all means."""
        missing = self.reducer.missing()
        if missing and not self.usage.is_open:
            names = ", ".join(sorted(self.names[p] for p in missing))
            raise RuntimeError(
                f"no gradient came for {names}: leave them out of the module, or give "
                "find_unused_parameters=True without static_graph"
            )
        for parameter in missing:
            self.reducer.gradient_ready(parameter)
        trace = self.group.trace
        with trace.span("wait", "waiting") if trace else contextlib.nullcontext():
            self.reducer.finish_pass()
        if self.joining and self.joining.scale != 1:
            for bucket in self.buckets:
                bucket.buffer *= self.joining.scale
        if self.usage.is_open:
            self.usage.compare(self.group)
        for parameter in self.usage.used_by_any:
            parameter.grad = self.reducer.bucket_of[parameter].views[parameter]
        self.has_means = True
        ready, self.usage.counts = self.usage.counts, {}
        if not self.has_order:
            order = [*ready, *(p for p in self.names if p not in ready)]
            root = self.joining.root if self.joining else 0  # within join: one that made this step
            self._use_order(order_of(root, order, [*self.names], self.group))

    def _take_part_with_zeros(self) -> None:
        """On a rank without data: take part while others run forward and backward."""
        self._share_buffers()
        self.reducer.start_pass()
        for parameter in self.names:
            parameter.grad = None
            self.reducer.gradient_ready(parameter)
        self._finish()

    def _abandon_failed_pass(self) -> None:
        if self.phase is Phase.FAILED:
            self.reducer.abandon_pass()
            self.usage.counts.clear()
            self._enter(Phase.IDLE)

    def _check_can_be_reduced(self, parameter: nn.Parameter) -> None:
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

    def _check_is_trained_as_wrapped(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in self.names:
                if name in self.names.values():
                    raise RuntimeError(
                        f"{name} was replaced since the module was wrapped, by functional_call or "
                        "by an assignment, so nothing would average its gradient: call the module "
                        "itself, or wrap it after the change"
                    )
                raise RuntimeError(
                    f"{name} requires a gradient now, but not when the module was wrapped, so "
                    "nothing would average it: unfreeze it first, and wrap the module then"
                )
            if self.layouts.get(parameter) not in (None, layout(parameter)):
                raise RuntimeError(
                    f"{describe(name, parameter)} on {parameter.device} is not what was wrapped: "
                    "change dtype, device, shape and memory format first, and wrap the module then"
                )

    def _share_buffers(self) -> None:
        root = self.joining.root if self.joining else 0  # within join: one that has data
        if self.broadcast_buffers:
            for buffer in self.module.buffers():
                self.group.broadcast(buffer, root)

    # ------------------------------------------------------------------ the order of buckets

    def _use_order(self, parameters: list[nn.Parameter]) -> None:
        self.has_order = True
        gradients = self._clone_gradients()
        self.reducer = Reducer(self.memory.buckets(parameters), self.group, self.reducer.hook)
        self._put_back(gradients)

    def _clone_gradients(self) -> dict[nn.Parameter, torch.Tensor]:
        return {p: p.grad.clone() for p in self.names if p.grad is not None}

    def _put_back(self, gradients: dict[nn.Parameter, torch.Tensor]) -> None:
        """Gradients as they were, after others were written into their buckets."""
        for parameter in self.names:
            parameter.grad = gradients.get(parameter)
            self.reducer.bucket_of[parameter].store(parameter)


def renamed(state_dict: Mapping[str, Any], before: str, after: str) -> dict[str, Any]:
    """A module's state dict with a different prefix of names, also of the versions in it."""

    def new(name: str) -> str:
        return after + name.removeprefix(before)

    found: dict[str, Any] = OrderedDict((new(name), value) for name, value in state_dict.items())
    versions = {(n + ".").lstrip("."): v for n, v in getattr(state_dict, "_metadata", {}).items()}
    found._metadata = {  # type: ignore[attr-defined]
        new(name).removesuffix("."): v for name, v in versions.items() if name.startswith(before)
    }
    return found


def layout(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Properties that a gradient shares with its parameter, so a view of a bucket fits both."""
    return parameter.dtype, parameter.device, parameter.shape, parameter.stride()


def is_opaque(part: Any) -> bool:
    """Whether a part of an output, itself without a history, may lead to a tensor that has one."""
    if isinstance(part, torch.Tensor):
        return part.requires_grad  # a parameter that the module returns as it is
    return not (part is None or isinstance(part, int | float | complex | str | bytes))


def main(ranks: int = 4, batch: int = 256, steps: int = 50) -> None:
    """Train with the wrapper: the losses of training by hand, in fewer and larger messages."""
    from distributed.workbench.training import show_wrapper

    def wrap(module: nn.Module, group: Group) -> DistributedDataParallel:
        return DistributedDataParallel(module, group, bucket_bytes=20_000)

    show_wrapper(wrap, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
