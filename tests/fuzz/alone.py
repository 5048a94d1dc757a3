"""A draw's training on one device: every rank's passes one after the other, and their mean.

And what a program's step is made of, here and on ranks: passes, and what follows them.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tests.fuzz.draws import Draw, Pass
from tests.fuzz.events import ODD
from tests.fuzz.network import inputs, loss_of, make_network, wide
from tests.fuzz.optimizers import OPTIMIZERS, SCHEDULES, groups_of
from torch import nn

EVALUATION = 9  # the number of a pass that is made for its loss alone


def do_passes(
    kind: str, passes: Sequence[Pass], forward: Callable[..., torch.Tensor],
    backward: Callable[[torch.Tensor], None], no_sync: Callable[[], Any],
) -> None:  # fmt: skip
    """One step's passes, in turn or otherwise."""
    if kind == "in turn":
        for number, one in enumerate(passes):
            with contextlib.nullcontext() if one.sync else no_sync():
                backward(forward(number, one))
        return
    losses = [forward(number, one) for number, one in enumerate(passes)]
    for loss in losses if kind == "forwards first" else [torch.stack(losses).sum()]:
        backward(loss)


def do_step(
    draw: Draw, optimizer: torch.optim.Optimizer, schedule: Any,
    make_gradients: Callable[[], None], step: Callable[[torch.optim.Optimizer], None],
) -> None:  # fmt: skip
    """Gradients, and what is made of them; as often as the optimizer asks, if it does."""

    def closure() -> float:
        optimizer.zero_grad()
        make_gradients()
        return 0.0  # the loss, which is not asked for without a line search

    if OPTIMIZERS[draw.optimizer].closure:
        optimizer.step(closure)
    else:
        make_gradients()
        step(optimizer)
    optimizer.zero_grad()
    if schedule:
        schedule.step()


class Alone:
    """What the draw's ranks compute together, segment by segment, as one device computes it."""

    def __init__(self, draw: Draw):
        self.draw, self.odd, self.model = draw, ODD[draw.odd], make_network(draw)
        self.odd.network(self.model)
        self.odd.changed(self.model)
        self.odd.attached(self.model)
        self.names = dict(self.model.named_parameters())
        self.trained = [p for p in self.names.values() if p.requires_grad]
        self.shards = {p: p for p in self.trained}  # what the optimizer updates
        if draw.param_dtype:
            self.shards = {p: nn.Parameter(p.detach().clone()) for p in self.trained}
            self.model.to(getattr(torch, draw.param_dtype))
        row = OPTIMIZERS[draw.optimizer]
        groups = groups_of(draw.groups, [*self.shards.values()])
        self.optimizer = self.odd.optimizer_class(row.made)(
            groups, **self.odd.settings(row.settings)
        )
        self.odd.optimized(self.optimizer)
        self.schedule = SCHEDULES[draw.schedule](self.optimizer)
        self.moved = {p: torch.zeros(p.shape, dtype=torch.float64) for p in self.trained}
        self.buffers = [self.own_buffers()]  # of each rank

    def run_segment(self, number: int) -> dict[str, Any]:
        segment = self.draw.segments[number]
        self.segment, self.buffers = number, self.buffers[:1] * segment.ranks
        self.losses: list[list[float]] = [[] for _ in range(segment.ranks)]
        for step, passes in enumerate(segment.steps):
            self.step = step
            self.active = [self.odd.has_batch(self.draw, step, r) for r in range(segment.ranks)]
            if any(self.active):
                self.update(passes)
            if self.draw.evaluate:
                self.evaluate()
        named = [(name, p, self.shards.get(p, p)) for name, p in self.names.items()]
        return {
            "losses": self.losses,
            "values": {name: shard.detach().clone() for name, _, shard in named},
            "others": self.odd.results(),
            "buffers": self.buffers,
            "bounds": {name: bound(self.draw, one, self.moved.get(p)) for name, p, one in named},
        }

    def make_gradients(self, passes: Sequence[Pass]) -> None:
        """The mean over ranks of what each adds up; None where DDP has no gradient on any rank."""
        self.sums = {p: wide(torch.zeros_like(p)) for p in self.trained}
        self.used = {*self.trained} if self.draw.zero else set()
        self.of_rank_0: list[dict[str, torch.Tensor]] = []  # at each forward pass that sends
        for rank, buffers in enumerate([*self.buffers]):
            if self.active[rank]:
                self.rank, self.sent = rank, 0
                self.use_buffers(buffers)
                self.odd.passes(self.do_passes, passes, self.drop)
                self.buffers[rank] = self.own_buffers()
        for p, shard in self.shards.items():
            shard.grad = self.sums[p].to(shard.dtype) if p in self.used else None
        self.odd.before_step(nn.ParameterList(self.shards.values()))
        if self.draw.clip:
            nn.utils.clip_grad_norm_(self.shards.values(), self.draw.clip)

    def do_passes(self, passes: Sequence[Pass]) -> None:
        do_passes(self.draw.passes, passes, self.forward, self.backward, contextlib.nullcontext)

    def drop(self) -> None:
        for p in self.trained:
            p.grad = None

    def forward(self, count: int, one: Pass) -> torch.Tensor:
        if one.sync and not self.draw.zero:  # DDP's buffers come from rank 0
            if self.sent == len(self.of_rank_0):
                self.of_rank_0.append(self.own_buffers())
            self.use_buffers(self.of_rank_0[self.sent])
            self.sent += 1
        raw = inputs(self.draw, self.segment, self.step, count, self.rank)
        loss = self.odd.loss(self.model, self.odd.batch(raw), one.without[self.rank])
        self.losses[self.rank].append(loss.item())
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        self.odd.backward(loss)
        for p in self.trained:
            if p.grad is not None:
                self.used.add(p)
                self.sums[p] += wide(p.grad) / self.odd.divisor(self.active)
        self.drop()

    def update(self, passes: Sequence[Pass]) -> None:
        before = {p: shard.detach().clone() for p, shard in self.shards.items()}
        made = partial(self.make_gradients, passes)
        do_step(self.draw, self.optimizer, self.schedule, made, self.odd.step)
        for p, shard in self.shards.items():
            p.data.copy_(shard.data)
            self.moved[p] += (wide(shard.detach()) - wide(before[p])).abs()
        self.odd.after_step(self.model)

    @torch.no_grad()
    def evaluate(self) -> None:
        self.model.eval()
        for rank, buffers in enumerate(self.buffers):
            self.use_buffers(buffers)
            raw = self.odd.batch(inputs(self.draw, self.segment, self.step, EVALUATION, rank))
            self.losses[rank].append(loss_of(self.model(raw)).item())
        self.model.train()

    def own_buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def use_buffers(self, values: dict[str, torch.Tensor]) -> None:
        for name, buffer in self.model.named_buffers():
            buffer.copy_(values[name])


def bound(draw: Draw, parameter: nn.Parameter, moved: torch.Tensor | None) -> torch.Tensor:
    """How far from one device's a weight may be, element by element.

    A gradient of one sign, summed over N ranks in each of P passes, is off by P (N + 1) roundings
    of relative size u; the optimizer rounds its states four times a step, and the weight once. A
    step is at most twice as sensitive as that.
    """
    if moved is None and draw.param_dtype:  # frozen: it may be cast for good
        return torch.finfo(getattr(torch, draw.param_dtype)).eps * parameter.detach().double().abs()
    if moved is None or parameter.dtype in (torch.float64, torch.complex128):
        return 1e-10 * wide(parameter.detach()).abs().clamp(min=1.0)
    steps = [step for segment in draw.segments for step in segment.steps]
    sums = max(map(len, steps)) * (1 + max(segment.ranks for segment in draw.segments))
    u = u_sums = torch.finfo(parameter.dtype).eps / 2
    if draw.param_dtype:
        reduced = [draw.reduce_dtype or "float32"]
        if draw.passes == "one backward" or draw.order != (*range(len(draw.parts)),):
            reduced.append(draw.param_dtype)  # autograd adds up within its graph
        u_sums = max(torch.finfo(getattr(torch, dtype)).eps / 2 for dtype in reduced)
    largest = parameter.detach().double().abs() + moved
    return 2 * (sums * u_sums + 4 * len(steps) * u) * moved + len(steps) * u * largest
