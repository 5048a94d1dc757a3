"""A sharded network of two layers: each weight is gathered before its use and then freed."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from distributed.workbench.memory_meter import MemoryUse
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal

HINTS = [
    "First write a helper that gathers one weight: `group.all_gather` into an empty array of N "
    "shards, then `.view(shape)`. Python frees an array when no name refers to it, so use `del`.",
    "backward gathers the weights again, so forward doesn't have to keep any. What else does the "
    "gradient of each matrix product need?",
    "In backward, the order matters: finish everything that needs W1, including its reduced "
    "gradient, before you gather W0. And where does the relu let a gradient through?",
]
LOOK = {  # words of a message → the name in the answer to look at
    "the sum of all ranks' gradients": "reduce_scatter|all_reduce",
}
ROWS = 2


class LargeOnly(MemoryUse):
    """Counts only storages that are large enough for a layer's weight."""

    least = 0  # bytes
    room = 0  # the storage in which the transport receives, which isn't the answer's

    def now(self) -> dict[str, int]:
        refs = [ref() for ref, _ in self.made.values()]
        sizes = [ref.nbytes() for ref in refs if ref is not None and ref._cdata != self.room]
        return {"large": sum(size for size in sizes if size >= self.least)}


class Forgetful(RingGroup):
    """A ring that doesn't keep its last message, so that only the answer's memory is counted."""

    def all_gather(self, *args: Any, **settings: Any) -> Any:
        return self._forget(super().all_gather(*args, **settings))

    def reduce_scatter(self, *args: Any, **settings: Any) -> Any:
        return self._forget(super().reduce_scatter(*args, **settings))

    def all_reduce(self, *args: Any, **settings: Any) -> Any:
        return self._forget(super().all_reduce(*args, **settings))

    def _forget(self, result: Any) -> Any:
        self._kept = []
        return result


Sizes = tuple[int, int, int, int]  # d, f and o, and what the numbers are drawn from


def drawn(draw: Draw) -> Sizes:
    """Sizes within a factor of two: a shard of one weight must be smaller than the other weight."""
    return 4 * draw(4, 7), 4 * draw(4, 7), 4 * draw(4, 7), draw(1, 10**6)


def data(rank: int, d: int, f: int, o: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x[b, d] and dy[b, o] of a rank."""
    return normal(ROWS, d, seed=(rank, d, f, o, seed)), normal(ROWS, o, seed=(rank, o, f, d, seed))


def weights(d: int, f: int, o: int, seed: int) -> list[torch.Tensor]:
    return [normal(d, f, seed=(d, f, 1, seed)), normal(f, o, seed=(f, o, 2, seed))]


def run(
    group: Group,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    sizes: Sizes,
) -> dict[str, Any]:
    rings = Forgetful(group)
    whole = weights(*sizes)
    shapes = [tuple(w.shape) for w in whole]
    shards = [w.view(group.size, -1)[group.rank].clone() for w in whole]
    x, dy = data(group.rank, *sizes)
    least = 8 * min(w.numel() for w in whole)
    rings.trace = trace = Trace(group.rank)
    room = rings.buffer(2, max(w.numel() for w in whole), whole[0])
    with LargeOnly() as use:
        use.least, use.room = least, room.untyped_storage()._cdata
        y, *kept = forward(rings, shards, shapes, x)
        in_forward, left = trace.sent // 8, use.now()["large"] // 8
        first = sum(use.peak.values()) // 8
        # Popped, so that what backward deletes is really freed.
        grads, dx = backward(rings, shards, shapes, kept.pop(), dy)
    found = {"y": y, "dx": dx, "dW0's shard": grads[0], "dW1's shard": grads[1]}
    return {
        "shards": shards,
        "found": {k: v.detach().clone() for k, v in found.items()},
        "sent": (in_forward, trace.sent // 8 - in_forward),
        "left": left,
        "first": first,
        "peak": sum(use.peak.values()) // 8,
    }


def alone(rank: int, sizes: Sizes) -> dict[str, torch.Tensor]:
    """The results for one rank's examples, with whole weights."""
    w0, w1 = (w.requires_grad_() for w in weights(*sizes))
    x, dy = data(rank, *sizes)
    x.requires_grad_()
    y = (x @ w0).relu() @ w1
    y.backward(dy)
    grads = {"dx": x.grad, "dW0's shard": w0.grad, "dW1's shard": w1.grad}
    return {"y": y.detach()} | {k: g for k, g in grads.items() if g is not None}


def check(forward: Callable[..., Any], backward: Callable[..., Any], *, draw: Draw) -> str:
    known: list[tuple[int, Sizes]] = [(2, (24, 20, 28, 0))]
    for ranks, sizes in chain(known, ((4, drawn(draw)) for _ in range(1))):
        results = on_ranks(run, forward, backward, sizes, ranks=ranks)
        references = [alone(rank, sizes) for rank in range(ranks)]
        for rank, result in enumerate(results):
            check_numbers(rank, ranks, result["found"], references)
            check_shards(rank, ranks, result.pop("shards"), weights(*sizes))
        for rank, result in enumerate(results):
            check_costs(rank, ranks, sizes, **result)
    return (
        "Right: these are one device's gradients, each weight was gathered just before its use, "
        "and memory never held more than one layer's weight and gradient."
    )


def check_numbers(
    rank: int, ranks: int, found: dict[str, torch.Tensor], references: list[dict[str, torch.Tensor]]
) -> None:
    here = f"{ranks} ranks, rank {rank}: "
    for name in ("y", "dx"):
        expect(name, found[name], references[rank][name], {}, 1e-9, here)
    for name in ("dW1's shard", "dW0's shard"):
        parts = [of_rank[name].reshape(ranks, -1)[rank] for of_rank in references]
        total = sum(parts[1:], parts[0])
        suspects = {
            "That is the sum of all ranks' gradients, not their mean": total,
            f"That is the gradient of rank {rank}'s examples only": parts[rank],
            "That is this rank's gradient divided by N, without the other ranks'": parts[rank]
            / ranks,
        }
        expect(name, found[name].view(-1), total / ranks, suspects, 1e-9, here)


def check_shards(
    rank: int, ranks: int, shards: list[torch.Tensor], whole: list[torch.Tensor]
) -> None:
    """Raise `Wrong` if this rank's shards of the weights have changed."""
    for number, (shard, weight) in enumerate(zip(shards, whole, strict=True)):
        if not shard.equal(weight.view(ranks, -1)[rank]):
            raise Wrong(
                f"{ranks} ranks: the gradients are right, but rank {rank}'s shard of W{number} has "
                "changed. Only the optimizer may change it"
            )


def check_costs(
    rank: int,
    ranks: int,
    sizes: Sizes,
    found: dict[str, torch.Tensor],
    sent: tuple[int, int],
    left: int,
    first: int,
    peak: int,
) -> None:
    d, f, o, _ = sizes
    w0, w1 = d * f, f * o
    one, here = max(w0, w1), f"The gradients are right, but rank {rank} of {ranks} "
    if left > one:
        raise Wrong(
            f"{here}still holds {left} elements in large arrays after forward. W0 has {w0}, W1 has "
            f"{w1}, and at most one of them may be in memory"
        )
    if first > one:
        raise Wrong(
            f"{here}holds up to {first} elements in large arrays during forward. W0 has {w0}, W1 "
            f"has {w1}. Free one weight before you gather the next"
        )
    if peak > 2 * one:
        raise Wrong(
            f"{here}holds up to {peak} elements in large arrays during backward. A layer's weight "
            f"and its gradient have {2 * one}. Free both before you gather the next weight"
            + (f"; {left} of these elements came in `kept`, so free that, too" if left else "")
        )
    shard = (ranks - 1) * (w0 + w1) // ranks
    if sum(sent) > 3 * shard:
        raise Wrong(
            f"{here}sends {sent[0]} + {sent[1]} elements in forward + backward, but {shard} + "
            f"{2 * shard} are enough: (N − 1)/N of each weight in forward, and of each weight and "
            "each gradient in backward"
        )
    if sum(sent) < 3 * shard - (ranks - 1) * w1 // ranks:
        raise Wrong(
            f"{here}sends only {sum(sent)} elements, but at least "
            f"{3 * shard - (ranks - 1) * w1 // ranks} are needed: use the group's collectives"
        )
