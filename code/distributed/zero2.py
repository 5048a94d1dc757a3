"""ZeRO-2: ZeRO-1, and gradients leave in buckets while the backward pass still computes.

    dW[N·s]{partial over ranks}, a bucket → reduce_scatter(avg) → dW[s], the rest is forgotten

A rank keeps its share of the gradients, and of the others no more than two buckets at any time
(Rajbhandari et al. 2020, §5.2). Each backward pass reduces, so accumulating costs messages, or, in
`no_sync()`, the memory that this stage saves.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from distributed.runtime.script import run_script
from distributed.shards import Unit
from distributed.zero1 import Zero1, show


class Zero2(Zero1):
    """Zero1 whose ranks keep a share of the gradients; `bucket_bytes` is what leaves at once."""

    ROOMS = 2  # one bucket is filled while the other is under way

    def __init__(self, *args: Any, bucket_bytes: int = 4_000_000, **settings: Any):
        self.sync = True  # False within no_sync()
        super().__init__(*args, bucket_bytes=bucket_bytes, **settings)
        self.spare: list[torch.Tensor] = []  # rooms that the group wants to be kept
        self._get_ready()

    def _make_gradients(self) -> None:
        """Nothing yet: a share dW[s] is made when it comes."""

    def gradient(self, i: int) -> torch.Tensor:
        return self.gradients[i]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here add up whole gradients on this rank, and send nothing."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def _get_ready(self) -> None:
        self.waiting = {i: set(self.units[i].parameters) for i in self.trained}
        self.in_backward = False
        self.left = 0  # how many of `trained` have left
        self.under_way: list[tuple[int, torch.Tensor, Any]] = []  # unit, its room, handle

    def _came(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a gradient is complete."""
        if self.reduced:
            raise RuntimeError("gradients are averaged and clipped already: step() comes first")
        self.came = True
        if not self.sync:
            return
        self._begin()
        self.waiting[self.unit_of[parameter]].discard(parameter)
        # In the same order on every rank, whatever order gradients come in.
        while self.left < len(self.trained):
            i = self.trained[self.left]
            if self.waiting[i] or not self._may_leave(i):
                break
            self._send_off(i)

    def _begin(self) -> None:
        """The backward pass is here: be called at its end."""
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _may_leave(self, i: int) -> bool:
        """Whether it is a unit's turn: here always, for nothing is sent but gradients, in order."""
        return True

    @torch.no_grad()
    def _send_off(self, i: int) -> None:
        """Copy a unit's gradients into a room, forget them, and start to average."""
        if len(self.under_way) == self.ROOMS:
            self._land()
        unit, room = self.units[i], self._find_room(self.units[i])
        flat = unit.write({p: p.grad for p in unit.parameters}, room[: unit.size])
        for parameter in unit.parameters:
            parameter.grad = None
        handle = self.group.reduce_scatter(flat, unit.of_rank(flat, self.group.rank), "avg", True)
        self.under_way.append((i, room, handle))
        self.left += 1

    def _find_room(self, unit: Unit) -> torch.Tensor:
        """Room for dW[N·s] of a unit."""
        if not self.group.keeps:
            return self.group.empty(unit.size, unit.dtype)
        for place, room in enumerate(self.spare):
            if room.dtype == unit.dtype:
                return self.spare.pop(place)
        same = [self.units[i] for i in self.trained if self.units[i].dtype == unit.dtype]
        return self.group.empty(max(other.size for other in same), unit.dtype)

    @torch.no_grad()
    def _land(self) -> None:
        """Wait for the oldest bucket under way, and add its share to what is here."""
        i, room, handle = self.under_way.pop(0)
        share = handle.wait()
        if i in self.gradients:
            self.gradients[i] += share
        else:
            self.gradients[i] = share.clone()
        if self.group.keeps:
            self.spare.append(room)

    def _end(self) -> None:
        """Called by autograd at the end of the backward pass."""
        self._finish()

    def _finish(self) -> None:
        """Send what is left, wait for all that was sent; a missing gradient is zero."""
        while self.left < len(self.trained):
            self._send_off(self.trained[self.left])
        while self.under_way:
            self._land()
        self._get_ready()

    def _reduce(self) -> None:
        """Nothing is left to do, unless the last backward pass was in no_sync()."""
        if any(p.grad is not None for p in self.unit_of):
            self._finish()

    def zero_grad(self) -> None:
        super().zero_grad()
        self._get_ready()  # should a backward pass have failed
        self.gradients.clear()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        rooms = [*self.spare, *(room for _, room, _ in self.under_way)]
        return {**super().tensors(), "buckets": rooms}


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-2 learns what one device learns, and keeps a share of the gradients."""
    show(Zero2, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
