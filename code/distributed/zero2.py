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

from distributed.script import run_script
from distributed.shards import Unit
from distributed.zero1 import Zero1, show


class Zero2(Zero1):
    """Zero1 whose ranks keep a share of the gradients; `bucket_bytes` is what leaves at once."""

    ROOMS = 2  # one bucket is filled while the other is under way

    def __init__(self, *args: Any, bucket_bytes: int = 4_000_000, **settings: Any):
        self.sync = True  # False within no_sync()
        super().__init__(*args, bucket_bytes=bucket_bytes, **settings)
        largest: dict[torch.dtype, int] = {}
        for i in self.trained:
            unit = self.units[i]
            largest[unit.dtype] = max(unit.size, largest.get(unit.dtype, 0))
        self.rooms = {
            dtype: [self.group.empty(size, dtype) for _ in range(self.ROOMS)]
            for dtype, size in largest.items()
        }
        self._get_ready()

    def _make_gradient(self, unit: Unit) -> torch.Tensor:
        """Room for dW[s]: this rank's share."""
        return torch.zeros(unit.share, dtype=unit.dtype, device=unit.device)

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
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self.waiting[self.unit_of[parameter]].discard(parameter)
        # In the same order on every rank, whatever order gradients come in.
        while self.left < len(self.trained) and not self.waiting[self.trained[self.left]]:
            self._send_off(self.trained[self.left])

    @torch.no_grad()
    def _send_off(self, i: int) -> None:
        """Copy a unit's gradients into a room, forget them, and start to average."""
        unit = self.units[i]
        rooms = self.rooms[unit.dtype]
        if len(self.under_way) == len(rooms):
            self._land()
        taken = [room.data_ptr() for _, room, _ in self.under_way]
        room = next(room for room in rooms if room.data_ptr() not in taken)
        flat = unit.write({p: p.grad for p in unit.parameters}, room[: unit.size])
        for parameter in unit.parameters:
            parameter.grad = None
        handle = self.group.reduce_scatter(flat, unit.of_rank(flat, self.group.rank), "avg", True)
        self.under_way.append((i, room, handle))
        self.left += 1

    @torch.no_grad()
    def _land(self) -> None:
        """Wait for the oldest bucket under way, and add its share to what is here."""
        i, _, handle = self.under_way.pop(0)
        self.gradients[i].add_(handle.wait())

    def _finish(self) -> None:
        """Called by autograd at the end of the backward pass; a missing gradient is zero."""
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
        for share in self.gradients.values():
            share.zero_()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        rooms = [room for rooms in self.rooms.values() for room in rooms]
        return {**super().tensors(), "buckets": rooms}


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-2 learns what one device learns, and keeps a share of the gradients."""
    show(Zero2, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
