"""A draw's training on ranks, as programs train with DDP and ZeRO."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tests.fuzz.alone import EVALUATION, do_passes, do_step
from tests.fuzz.draws import Draw, Pass, Segment
from tests.fuzz.events import ODD
from tests.fuzz.faults import FAULTS
from tests.fuzz.network import inputs, loss_of, make_network
from tests.fuzz.odd import refusal
from tests.fuzz.optimizers import OPTIMIZERS, SCHEDULES, groups_of
from torch import nn

from distributed import Group
from distributed.ddp import DistributedDataParallel
from distributed.ring_group import RingGroup
from distributed.runtime.mesh import mesh
from distributed.shared_memory import SharedGroup
from distributed.zero import HSDP, Zero1, Zero2, Zero3, checkpoint


def kind_of(segment: Segment, group: Group) -> Group:
    if segment.group == "ring":
        return RingGroup(group)
    if segment.group == "shared":
        return SharedGroup(group)
    if segment.group == "no board":
        return Group(group.device, None, group.local_size, group.backend)
    return group


ZEROS: dict[str, Callable[..., Any]] = {
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "zero3, no prefetch": partial(Zero3, prefetch=False),
    "zero3, kept after forward": partial(Zero3, reshard_after_forward=False),
    "hsdp": HSDP,
}


class Trainer:
    """One interface to DDP and to ZeRO, as programs use them."""

    def __init__(self, draw: Draw, segment: Segment, group: Group, model: nn.Module):
        self.draw, self.segment, self.module = draw, segment, model
        self.odd, self.group = ODD[draw.odd], group
        self.trained = [name for name, p in model.named_parameters() if p.requires_grad]
        if draw.zero:
            self.model = self.odd.module(model, group)
            self.make_optimizer()
            self.no_sync: Any = self.optimizer.no_sync
        else:
            bytes_, static = segment.bucket_bytes, segment.strategy == "ddp, static graph"
            self.model = DistributedDataParallel(
                model, kind_of(segment, group), bytes_, bytes_, segment.find_unused,
                static_graph=static,
            )  # fmt: skip
            self.make_optimizer()
            self.no_sync = self.model.no_sync
        self.odd.wrapped(self)

    def make_optimizer(self) -> None:
        draw = self.draw
        named = dict(self.module.named_parameters())
        whole = draw.odd == "unfrozen after wrapping" and not draw.zero
        given = [p for n, p in named.items() if whole or n in self.trained]
        groups, row = groups_of(draw.groups, given), OPTIMIZERS[draw.optimizer]
        settings, optimizer_class = (
            self.odd.settings(row.settings),
            self.odd.optimizer_class(row.made),
        )
        if draw.zero:
            self.optimizer = self.make_zero(optimizer_class, groups, settings)
        else:
            self.optimizer = optimizer_class(groups, **settings)
        self.odd.optimized(self.optimizer)
        self.schedule = SCHEDULES[draw.schedule](self.optimizer)

    def make_zero(self, optimizer_class: Any, groups: list[Any], settings: dict[str, Any]) -> Any:
        draw, segment = self.draw, self.segment
        options = {"partition": segment.partition, "param_groups": self.odd.param_groups(groups)}
        for name in ("param_dtype", "reduce_dtype"):
            if dtype := getattr(draw, name):
                options[name] = getattr(torch, dtype)
        if segment.strategy in ("zero1", "zero2"):
            options["bucket_bytes"] = segment.bucket_bytes
        where: tuple[Group, ...] = (self.group,)
        if segment.strategy == "hsdp":
            where = mesh(self.group, segment.per_host)
        groups_here = [kind_of(segment, one) for one in where]
        return ZEROS[segment.strategy](
            self.module, optimizer_class, *groups_here, **options, **settings
        )

    def step(self, do_passes: Callable[[Sequence[Pass]], None], passes: Sequence[Pass]) -> None:
        made = partial(self.make_gradients, do_passes, passes)
        do_step(self.draw, self.optimizer, self.schedule, made, self.odd.step)
        self.odd.after_step(self.module)

    def make_gradients(
        self, do_passes: Callable[[Sequence[Pass]], None], passes: Sequence[Pass]
    ) -> None:
        self.odd.passes(do_passes, passes, self.optimizer.zero_grad)
        self.odd.before_step(self.module)
        if self.draw.clip and self.draw.zero:
            self.optimizer.clip_grad_norm_(self.draw.clip)
        elif self.draw.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.draw.clip)

    def values(self) -> dict[str, torch.Tensor]:
        zero = self.draw.zero
        pairs = self.optimizer.full_parameters() if zero else self.module.named_parameters()
        return {name: value.detach().clone() for name, value in pairs}

    def save(self, folder: str, number: int) -> Any:
        schedule = self.schedule and self.schedule.state_dict()
        if not self.draw.zero:
            return self.model.state_dict(), self.optimizer.state_dict(), schedule
        checkpoint.save(self.optimizer, folder, number, schedule=schedule)
        self.group.barrier()
        return None

    def load(self, saved: Any, folder: str) -> None:
        if self.draw.zero:
            schedule = checkpoint.load(self.optimizer, folder)["schedule"]
        else:
            model, optimizer, schedule = saved
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        if self.schedule:
            self.schedule.load_state_dict(schedule)


def play(
    group: Group, draw: Draw, number: int, saved: Any, folder: str, fault: str
) -> dict[str, Any]:
    """One rank of one segment: losses, weights, buffers, and what the next segment goes on from.

    Of an odd use that is refused: what the refusal says, and how many steps came before it.
    """
    made: list[int] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            if fault:
                FAULTS[fault](patch)
            return train(group, draw, number, saved, folder, made)
    except Exception as error:
        if draw.may_refuse and (says := refusal(error)):
            return {"refused": says, "steps": len(made)}
        raise


def train(
    group: Group, draw: Draw, number: int, saved: Any, folder: str, made: list[int]
) -> dict[str, Any]:
    segment, model, odd = draw.segments[number], make_network(draw), ODD[draw.odd]
    odd.network(model)
    if group.rank:  # only rank 0 has the right weights
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data.copy_(tensor.data + 1)
    trainer = Trainer(draw, segment, group, model)
    if number:
        trainer.load(saved, folder)
    else:
        odd.changed(trainer.module)
    odd.attached(trainer.module)
    losses: list[float] = []

    def forward(step: int, count: int, one: Pass) -> torch.Tensor:
        raw = odd.batch(inputs(draw, number, step, count, group.rank))
        loss = odd.loss(trainer.model, raw, one.without[group.rank])
        losses.append(loss.item())
        return loss

    def make_step(step: int, passes: Sequence[Pass]) -> None:
        def run(some: Sequence[Pass]) -> None:
            do_passes(draw.passes, some, partial(forward, step), odd.backward, trainer.no_sync)

        trainer.step(run, passes)
        made.append(step)
        if draw.evaluate:
            trainer.model.eval()
            with odd.no_grad():
                raw = odd.batch(inputs(draw, number, step, EVALUATION, group.rank))
                losses.append(loss_of(trainer.model(raw)).item())
            trainer.model.train()

    for epoch in odd.epochs([*enumerate(segment.steps)]):
        with odd.joined(trainer):
            for step, passes in epoch:
                if odd.has_batch(draw, step, group.rank):
                    make_step(step, passes)
    return {
        "losses": losses,
        "values": trainer.values(),
        "buffers": {name: b.clone() for name, b in trainer.module.named_buffers()},
        "others": odd.results(),
        "saved": trainer.save(folder, number) if number + 1 < len(draw.segments) else None,
    }
