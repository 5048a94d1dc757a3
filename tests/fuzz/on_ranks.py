"""A draw's training on ranks, as programs train with DDP and ZeRO."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.fuzz.alone import EVALUATION, OPTIMIZERS, SETTINGS, do_passes, groups_of
from tests.fuzz.draws import Draw, Pass, Segment
from tests.fuzz.faults import FAULTS
from tests.fuzz.network import inputs, loss_of, make_network
from tests.fuzz.odd import ODD, refusal
from torch import nn

from distributed import Group, checkpoint
from distributed.ddp import DistributedDataParallel
from distributed.hsdp import Hsdp, mesh
from distributed.ring_group import RingGroup
from distributed.shared_memory import SharedGroup
from distributed.zero1 import Zero1
from distributed.zero2 import Zero2
from distributed.zero3 import Zero3


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
    "hsdp": Hsdp,
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
        draw, segment = self.draw, self.segment
        named = dict(self.module.named_parameters())
        whole = draw.odd == "unfrozen after wrapping" and not draw.zero
        groups = groups_of(draw, [p for n, p in named.items() if whole or n in self.trained])
        settings = self.odd.settings(SETTINGS[draw.optimizer])
        optimizer_class = self.odd.optimizer_class(OPTIMIZERS[draw.optimizer])
        if not draw.zero:
            self.optimizer = optimizer_class(groups, **settings)
            return
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
        self.optimizer = ZEROS[segment.strategy](
            self.module, optimizer_class, *groups_here, **options, **settings
        )

    def step(self) -> None:
        self.odd.before_step(self.module)
        if self.draw.clip and self.draw.zero:
            self.optimizer.clip_grad_norm_(self.draw.clip)
        elif self.draw.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.draw.clip)
        self.odd.step(self.optimizer)
        self.optimizer.zero_grad()

    def values(self) -> dict[str, torch.Tensor]:
        zero = self.draw.zero
        pairs = self.optimizer.full_parameters() if zero else self.module.named_parameters()
        return {name: value.detach().clone() for name, value in pairs}

    def save(self, folder: str, group: Group) -> Any:
        if not self.draw.zero:
            return self.model.state_dict(), self.optimizer.state_dict()
        checkpoint.save(self.optimizer, folder, 1)
        group.barrier()
        return None

    def load(self, saved: Any, folder: str) -> None:
        if self.draw.zero:
            checkpoint.load(self.optimizer, folder)
        else:
            self.model.load_state_dict(saved[0])
            self.optimizer.load_state_dict(saved[1])


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
        if draw.odd and (says := refusal(error)):
            return {"refused": says, "steps": len(made)}
        raise


def train(
    group: Group, draw: Draw, number: int, saved: Any, folder: str, made: list[int]
) -> dict[str, Any]:
    segment, model, odd = draw.segments[number], make_network(draw), ODD[draw.odd]
    odd.network(model)
    if group.rank:  # only rank 0 has the right weights
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data.add_(1)
    trainer = Trainer(draw, segment, group, model)
    if number:
        trainer.load(saved, folder)
    else:
        odd.changed(trainer.module)
    losses: list[float] = []

    def forward(step: int, count: int, one: Pass) -> torch.Tensor:
        raw = inputs(draw, number, step, count, group.rank)
        loss = odd.loss(trainer.model, raw, one.without[group.rank])
        losses.append(loss.item())
        return loss

    for step, passes in enumerate(segment.steps):
        do_passes(draw.passes, passes, partial(forward, step), odd.backward, trainer.no_sync)
        trainer.step()
        made.append(step)
        if draw.evaluate:
            trainer.model.eval()
            with torch.no_grad():
                raw = inputs(draw, number, step, EVALUATION, group.rank)
                losses.append(loss_of(trainer.model(raw)).item())
            trainer.model.train()
    return {
        "losses": losses,
        "values": trainer.values(),
        "buffers": {name: b.clone() for name, b in trainer.module.named_buffers()},
        "saved": trainer.save(folder, group) if number + 1 < len(draw.segments) else None,
    }
