"""Buckets: gradients of many parameters in one flat buffer, to be reduced in one go.

    buffer[n] = gradient of the first parameter, of the second, …; each `p.grad` is a view of it

A message has a price of its own, so a few large all-reduces cost less than many small ones. But a
bucket can leave only when its last gradient is ready, so one bucket for all leaves too late.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from distributed import Group


class State(Enum):
    IDLE = auto()  # between two passes: the buffer holds the means of the last one
    FILLING = auto()  # in a pass: gradients are missing, or an earlier bucket has not left
    REDUCING = auto()  # the all-reduce is under way: nobody may touch the buffer


class Bucket:
    """Gradients of one dtype that travel together: IDLE → FILLING → REDUCING → IDLE."""

    def __init__(self, index: int, parameters: list[nn.Parameter], buffer: torch.Tensor):
        self.index, self.parameters, self.buffer = index, parameters, buffer
        parts = buffer.split([p.numel() for p in parameters])
        self.views = {p: part.view(p.shape) for p, part in zip(parameters, parts, strict=True)}
        self.state = State.IDLE
        self.missing: set[nn.Parameter] = set()  # whose gradients this pass still waits for
        self.work: Any = None  # what the hook returned, while REDUCING

    def start_pass(self) -> None:
        assert self.state is State.IDLE
        self.state, self.missing = State.FILLING, set(self.parameters)

    @torch.no_grad()  # a pass with create_graph=True would record the copy
    def store(self, parameter: nn.Parameter) -> None:
        """Make p.grad a view of the buffer. A parameter without a gradient: zeros."""
        assert self.state is not State.REDUCING
        view = self.views[parameter]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():  # new, as after every zero_grad()
            view.copy_(parameter.grad)
            parameter.grad = view

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """Nothing more is added to this parameter's gradient in this pass."""
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
        self.work.wait()
        self.state, self.work = State.IDLE, None


Hook = Callable[[Group, Bucket], Any]  # starts to reduce bucket.buffer; what it returns has wait()


def all_reduce_hook(group: Group, bucket: Bucket) -> Any:
    """buffer[n]{partial over ranks} → buffer[n], the mean, made in the gradients' dtype.

    The sum is rounded to that dtype N − 1 times; float16 is divided by about √N before it and by
    the rest after it, so that neither large gradients overflow nor small ones vanish (`divisors`
    in `runtime/group.py`). A mean in bfloat16, 8 bits of precision, is off by at most N/256 of the
    mean of the magnitudes. Complex gradients are reduced as pairs of real ones.
    """
    buffer = bucket.buffer
    real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    return group.all_reduce(real, "avg", async_op=True)


def fill_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int, first_bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """Split parameters, in this order, into lists of at most `bucket_bytes` each.

    The first list is smaller if `first_bucket_bytes` are less, so that communication starts early.
    A parameter that is larger than a bucket has a list of its own.
    """
    lists: list[list[nn.Parameter]] = []
    free = 0  # bytes that the last list can still hold
    for parameter in parameters:
        if not lists or parameter.nbytes > free:
            free = bucket_bytes if lists else min(first_bucket_bytes, bucket_bytes)
            lists.append([])
        lists[-1].append(parameter)
        free -= parameter.nbytes
    return lists


def fill_by_dtype(
    parameters: Sequence[nn.Parameter], bucket_bytes: int, first_bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """The same where dtypes differ, because a buffer has one: in the order of what is first."""
    index = {parameter: number for number, parameter in enumerate(parameters)}
    lists: list[list[nn.Parameter]] = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        alike = (parameter for parameter in parameters if parameter.dtype == dtype)
        lists += fill_buckets(alike, bucket_bytes, bucket_bytes if lists else first_bucket_bytes)
    return sorted(lists, key=lambda together: index[together[0]])
