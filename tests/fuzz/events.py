"""Events: what else happens in a training, and the table of all events and odd uses.

Hooks of the user's, copies and averages, passes that fail, batches of other lengths, ranks that run
out of data. Each is right, or refused as odd uses are.
"""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random
from typing import Any, ClassVar

import torch
from tests.fuzz.draws import Draw, Pass, Segment, draw
from tests.fuzz.layers import LAYERS
from tests.fuzz.network import Network
from tests.fuzz.odd import DDP, USES, Odd
from tests.fuzz.optimizers import OPTIMIZERS
from torch import nn
from torch.optim.swa_utils import AveragedModel


def halve_tensors(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: 0.5 * gradient)


def halve_gradients(model: nn.Module) -> None:
    def halve(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad *= 0.5

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(halve)


class HooksBefore(Odd):
    def __init__(self, register: Callable[[nn.Module], None]):
        self.register = register
        self.one_pass = register is halve_gradients  # which halves what earlier passes left, too

    def network(self, model: Network) -> None:
        self.register(model)


class HooksAfter(HooksBefore):
    def network(self, model: Network) -> None: ...

    def attached(self, model: nn.Module) -> None:
        self.register(model)


class BlockHooks(Odd):
    """Hooks of blocks that change what goes in, what comes out, and what goes back."""

    changes: ClassVar = {"output": "tuple"}

    def attached(self, model: Any) -> None:
        def before(block: Any, given: Any) -> Any:
            return given[0] * block.extra.mean(), *given[1:]

        def after(block: Any, given: Any, output: Any) -> Any:
            return output[0] * block.extra.mean(), *output[1:]

        def backward(block: Any, gradients: Any, _: Any) -> Any:
            return tuple(None if g is None else 0.5 * g for g in gradients)

        for block in model.blocks:
            block.register_forward_pre_hook(before)
            block.register_forward_hook(after)
            block.register_full_backward_hook(backward)


class OptimizerHooks(Odd):
    """A hook of the optimizer shrinks weights before each step, and another one after it."""

    def __init__(self, register: str):
        self.register = register

    @torch.no_grad()
    def shrink(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter *= 0.5

    def optimized(self, optimizer: torch.optim.Optimizer) -> None:
        getattr(optimizer, self.register)(self.shrink)


class Average(Odd):
    one_segment = True

    def attached(self, model: nn.Module) -> None:
        self.copy: nn.Module = AveragedModel(model)

    def after_step(self, model: nn.Module) -> None:
        assert isinstance(self.copy, AveragedModel)
        self.copy.update_parameters(model)

    def results(self) -> dict[str, torch.Tensor]:
        return {f"{n} of the copy": p.detach().clone() for n, p in self.copy.named_parameters()}


class Copies(Average):
    def attached(self, model: nn.Module) -> None: ...

    def after_step(self, model: nn.Module) -> None:
        self.copy = copy.deepcopy(model)
        with torch.no_grad():
            self.copy.eval()(torch.ones(2, 3, dtype=torch.float64))


class Compiled(Odd):
    weight = 0.2  # it is slow

    def wrapped(self, trainer: Any) -> None:
        torch._dynamo.reset()
        for block in trainer.module.blocks:
            block.compile(backend="aot_eager")


class UncalledBlock(Odd):
    def loss(self, model: Any, raw: torch.Tensor, without: Any) -> torch.Tensor:
        weight = next(getattr(model, "module", model).blocks[0].parameters())
        return super().loss(model, raw, without) + weight.double().square().sum()


class Oops(Exception):
    """What a program raises, and catches."""


class FailingForward(Odd):
    """Each step is begun twice, because its first pass fails."""

    drops = "behind"  # else not all ranks fail
    fails = False

    def passes(
        self,
        run: Callable[[Sequence[Pass]], None],
        passes: Sequence[Pass],
        drop: Callable[[], None],
    ) -> None:
        self.fails = True
        with contextlib.suppress(Oops):
            run(passes[:1])
        self.fails = False
        drop()
        run(passes)

    def fail(self, _: Any) -> None:
        if self.fails:
            raise Oops

    def loss(self, model: Any, raw: torch.Tensor, without: Any) -> torch.Tensor:
        loss = super().loss(model, raw, without)
        self.fail(loss)
        return loss


class FailingBackward(FailingForward):
    def network(self, model: Any) -> None:
        model.first.weight.register_hook(self.fail)

    def loss(self, model: Any, raw: torch.Tensor, without: Any) -> torch.Tensor:
        return Odd.loss(self, model, raw, without)


class Lengths(Odd):
    """Batches of other lengths, and empty ones."""

    needs = ("empty batch",)
    parts: ClassVar = {"buffers": False}
    changes: ClassVar = {"param_dtype": ""}

    def batch(self, raw: torch.Tensor) -> torch.Tensor:
        return raw[: int(raw[0].abs().sum() * 10) % (len(raw) + 1)]


class InferenceMode(Odd):
    changes: ClassVar = {"evaluate": True}
    no_grad = torch.inference_mode


class Joined(Odd):
    """Two epochs of up to three steps, of which ranks make more and fewer."""

    strategies = DDP
    one_pass = one_segment = True
    needs = ("join",)
    alike = ("ddp, static graph",)  # else the graph of all ranks changes when one has no more data
    parts: ClassVar = {"buffers": False}
    changes: ClassVar = {"evaluate": False, "schedule": ""}
    steps = 3  # in an epoch

    def __init__(self, by_all: bool):
        self.by_all = by_all

    def epochs(self, steps: list[Any]) -> list[list[Any]]:
        return [steps[: self.steps], steps[self.steps :]]

    def joined(self, trainer: Any) -> contextlib.AbstractContextManager[None]:
        return trainer.model.join(self.by_all, trainer.optimizer)

    def has_batch(self, draw: Draw, step: int, rank: int) -> bool:
        return step % self.steps < Random(f"{draw.number} {rank}").randint(0, self.steps)

    def divisor(self, active: list[bool]) -> int:
        return len(active) if self.by_all else sum(active)


ODD: dict[str, Odd] = {
    **USES,
    "tensor hooks before wrapping": HooksBefore(halve_tensors),
    "tensor hooks after wrapping": HooksAfter(halve_tensors),
    "gradient hooks before wrapping": HooksBefore(halve_gradients),
    "gradient hooks after wrapping": HooksAfter(halve_gradients),
    "blocks with hooks, after wrapping": BlockHooks(),
    "a hook before the optimizer's step": OptimizerHooks("register_step_pre_hook"),
    "a hook after the optimizer's step": OptimizerHooks("register_step_post_hook"),
    "average of the weights": Average(),
    "deep copies of the module": Copies(),
    "compiled blocks": Compiled(),
    "weight of a block that is not called": UncalledBlock(),
    "forward passes that fail": FailingForward(),
    "backward passes that fail": FailingBackward(),
    "batches of other lengths": Lengths(),
    "evaluation in inference_mode": InferenceMode(),
    "join": Joined(by_all=True),
    "join, mean of those with data": Joined(by_all=False),
}


def drawn(number: int, name: str | None = None) -> Draw:
    """The draw of this number; two in five, or with a `name` each, with an event or odd use."""
    random, made = Random(f"odd {number}"), draw(number)
    strategy = made.segments[0].strategy
    fits = [one for one, odd in ODD.items() if strategy in odd.strategies and one]
    (chosen,) = random.choices(fits, [ODD[one].weight for one in fits])
    if name is None:
        return with_odd(made, chosen) if random.random() < 0.4 else made
    return with_odd(made, name) if name in fits else made


def with_odd(made: Draw, name: str) -> Draw:
    odd = ODD[name]
    again = {"reentrant": "plain"}  # a reentrant checkpoint returns tuples, and allows no grad()
    parts = tuple(
        replace(
            p,
            again=again.get(p.again, p.again),
            low=p.low if odd.low else "",
            layer="" if p.layer and LAYERS[p.layer].cannot.intersection(odd.needs) else p.layer,
            **odd.parts,
        )
        for p in made.parts
    )
    segments = tuple(replace(s, steps=steps_for(s, odd)) for s in made.segments)
    if odd.saves and len(segments) == 1:
        segments *= 2
    if odd.one_segment:
        segments = segments[:1]
    mixed = any(part.low for part in parts) and not made.param_dtype
    row = OPTIMIZERS[made.optimizer]
    unfit = row.closure or (isinstance(odd, Joined) and not row.resumes)  # join loads its states
    optimizer = "momentum" if unfit else made.optimizer
    changes = {
        "odd": name,
        "parts": parts,
        "segments": segments,
        "optimizer": optimizer,
        "param_dtype": "",
        "reduce_dtype": made.reduce_dtype if mixed else "",
        **odd.changes,
    }
    return replace(made, **changes)


def steps_for(segment: Segment, odd: Odd) -> tuple[tuple[Pass, ...], ...]:
    """Its steps, of which no pass leaves out what the odd use needs."""
    steps = segment.steps
    if segment.strategy in odd.alike:
        steps = tuple(
            tuple(replace(one, without=one.without[:1] * segment.ranks) for one in passes)
            for passes in steps
        )
    if odd.one_pass:
        steps = tuple((replace(step[-1], sync=True),) for step in steps)
    if isinstance(odd, Joined):
        steps = tuple(islice(cycle(steps), 2 * odd.steps))
    return keep(steps, odd.drops)


def keep(steps: tuple[tuple[Pass, ...], ...], dropped: str) -> tuple[tuple[Pass, ...], ...]:
    """The same steps, of which no pass leaves out things of this kind."""
    if not dropped:
        return steps

    def without(one: Pass) -> Pass:
        ranks = (tuple(t for t in things if not t.startswith(dropped)) for things in one.without)
        return replace(one, without=tuple(ranks))

    return tuple(tuple(map(without, passes)) for passes in steps)
