"""All-reduces during the backward pass: when they start, when they're waited for, what is read."""

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from distributed.runtime.queue import Handle
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, compare, on_ranks

HINTS = [
    "`parameter.register_post_accumulate_grad_hook(hook)` calls `hook(parameter)` as soon as that "
    "gradient is complete, while the backward pass goes on.",
    'In the hook: `handles.append(group.all_reduce(parameter.grad, op="avg", async_op=True))`. '
    "Until `handle.wait()` the gradient belongs to the all-reduce: neither read nor change it.",
    "After `loss.backward()`, wait for all handles. Registering gives something with `remove()`: "
    "remove the hooks at the end, or the next step has them twice.",
]
LOOK = {  # words of a message → name in the answer to look at
    "is the sum,": "all_reduce",
    "without async_op": "all_reduce",
    "before the .*: the backward pass stands": "wait",
    "nothing overlaps": "backward",
    "did hooks": "register_post_accumulate_grad_hook",
}
ROWS = 4


class Case(NamedTuple):
    """Inputs of each layer and outputs of the last, and the seed of weights and rows."""

    sizes: list[int]
    seed: int = 0

    def network(self, group: Group | None = None) -> nn.Module:
        layers = range(len(self.sizes) - 1)
        return nn.Sequential(*(Layer(number, self, group) for number in layers))

    def loss_of(self, module: nn.Module, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 10 * rank + step)
        x = torch.randn(ROWS, self.sizes[0], generator=generator, dtype=torch.float64)
        return module(x).square().mean()


def drawn(draw: Draw) -> Case:
    return Case([draw(2, 9) for _ in range(draw(4, 7))], draw(1, 10**6))


class Product(torch.autograd.Function):
    """y[b, f] = Σ_d x[b, d] W[d, f]; its backward pass is recorded."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Group | None, name: str
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.name = group, name
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        trace = (ctx.group and ctx.group.trace) or Trace(0)
        with trace.span(ctx.name):
            return grads[0] @ weight.T, x.T @ grads[0], None, None


class Layer(nn.Module):
    def __init__(self, number: int, case: Case, group: Group | None):
        super().__init__()
        generator = torch.Generator().manual_seed(case.seed + number)
        shape = case.sizes[number], case.sizes[number + 1]
        self.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        self.name, self.group = f"backward of layer {number}", group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.weight, self.group, self.name)


class Counted(NamedTuple):
    """Counts and arrays of one step on one rank."""

    grads: list[torch.Tensor | None]
    trace: Trace
    elements: int  # number of elements that were reduced
    started: int
    waited: int
    at_once: int  # number of all-reduces without async_op
    changed: list[int]  # all-reduces whose array was written between start and wait


class Careful:
    """all_reduce that fills its array with NaN until the wait, so that an earlier read shows."""

    def __init__(self, group: Group):
        self.group, self.reduce = group, group.all_reduce
        self.elements = self.started = self.waited = self.at_once = 0
        self.changed: list[int] = []

    def all_reduce(self, x: torch.Tensor, op: str = "sum", async_op: bool = False) -> Any:
        if isinstance(x, nn.Parameter):
            raise ValueError("all_reduce of a parameter: reduce its gradient, parameter.grad")
        trace = self.group.trace
        assert trace is not None
        number, self.started = self.started, self.started + 1
        self.elements += x.numel()
        if not async_op:
            self.at_once += 1
            with trace.span("wait", "waiting"):
                return self.reduce(x, op)
        work = x.detach().clone()
        handle = self.reduce(work, op, async_op=True)
        x.detach().fill_(torch.nan)
        version = x._version

        def wait() -> None:
            self.waited += 1
            with trace.span("wait", "waiting"):
                handle.wait()
            if x._version != version:
                self.changed.append(number)

        return Handle(x, wait, lambda: x.detach().copy_(work))


def run(group: Group, answer: Callable[..., Any], case: Case) -> list[Counted]:
    module, steps = case.network(group), []
    for step in range(2):
        module.zero_grad()
        group.trace = trace = Trace(group.rank)
        careful = Careful(group)
        vars(group)["all_reduce"] = careful.all_reduce
        try:
            answer(group, module, case.loss_of(module, group.rank, step))
        finally:
            del vars(group)["all_reduce"]
            group.trace = None
        grads = [p.grad for p in module.parameters()]
        counts = careful.elements, careful.started, careful.waited, careful.at_once
        spans = list(trace.spans)  # all-reduces without a wait may still add spans
        steps.append(Counted(grads, Trace(group.rank, spans), *counts, careful.changed))
        group.barrier()
    return steps


def check(backward: Callable[..., Any], *, draw: Draw) -> str:
    known = [(3, Case([5, 7, 6, 4, 3]))]
    for ranks, case in chain(known, ((2, drawn(draw)) for _ in range(1))):
        results = on_ranks(run, backward, case, ranks=ranks)
        for step in range(2):
            right = expected(case, ranks, step)
            for rank, steps in enumerate(results):
                where = f"{ranks} ranks, step {step}, rank {rank}"
                check_numbers(where, steps[step], right, ranks, step)
        for rank, steps in enumerate(results):
            check_order(f"{ranks} ranks: the gradients are right, but rank {rank} ", steps[0])
    return "Right: the first gradients travel while the last are computed, and all have come."


def expected(case: Case, ranks: int, step: int) -> list[torch.Tensor]:
    module = case.network()
    for rank in range(ranks):
        (case.loss_of(module, rank, step) / ranks).backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def check_numbers(
    where: str, found: Counted, right: list[torch.Tensor], ranks: int, step: int
) -> None:
    once = sum(grad.numel() for grad in right)
    if found.started == 0:
        raise Wrong(f"{where}: nothing is reduced: there was no all_reduce")
    if found.elements > once and step:
        raise Wrong(
            f"{where} reduces {found.elements} elements for {once}: did hooks of the step before "
            "stay? Remove them"
        )
    if found.elements != once:
        raise Wrong(f"{where} reduces {found.elements} elements; all gradients have {once}")
    if (left := found.started - found.at_once - found.waited) > 0:
        raise Wrong(
            f"{where} starts {found.started} all-reduces and does not wait for {left} of them: "
            "whoever reads those gradients reads values that have not arrived yet"
        )
    if found.changed:
        raise Wrong(
            f"{where} writes into the array of all-reduce no. {found.changed[0]} after its start "
            "and before wait(): until then it belongs to the all-reduce"
        )
    for number, (grad, goal) in enumerate(zip(found.grads, right, strict=True)):
        if grad is not None and grad.isnan().any():
            raise Wrong(
                f"{where}: the gradient of layer {number} was read before wait(), when its values "
                "had not come yet (NaN here)"
            )
        if grad is not None and torch.allclose(grad, goal * ranks):
            raise Wrong(
                f"{where}: the gradient of layer {number} is the sum, {ranks} times the mean"
            )
        compare(f"gradient of layer {number}", grad, goal, 1e-9, f"{where}: ")


def check_order(said: str, found: Counted) -> None:
    kinds = {
        kind: sorted((s for s in found.trace.spans if s.kind == kind), key=lambda s: s.start)
        for kind in ("compute", "communication", "waiting")
    }
    last = max(kinds["compute"], key=lambda s: s.end)
    if kinds["communication"][0].start > last.end:
        raise Wrong(
            f"{said}starts its first all-reduce after the {last.name}, the last of all: nothing "
            "overlaps. Start each as soon as its gradient is there"
        )
    if kinds["waiting"] and kinds["waiting"][0].start < last.end:
        if found.at_once:
            raise Wrong(f"{said}calls all_reduce without async_op=True: backward stands meanwhile")
        raise Wrong(
            f"{said}waits for an all-reduce before the {last.name}: the backward pass stands "
            "meanwhile. Wait at the end"
        )
