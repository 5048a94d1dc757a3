"""A sharded network of two layers: weights are gathered for their turn, and go again."""

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
    "Write `gather(group, share, shape)` first: `group.all_gather` into an empty array of N "
    "shares, then `.view(shape)`. An array is freed when no name refers to it: `del w`.",
    "forward keeps x and h for backward, never a weight: backward gathers each weight again. The "
    "last weight of forward may stay, for it is the first of backward.",
    "backward: gather W1, dh = (dy @ W1ᵀ) · (h > 0), `del` W1; dW1 = hᵀ @ dy, reduce-scatter its "
    'mean with "avg", and let it go; only then gather W0, for dx = dh @ W0ᵀ.',
]
LOOK = {  # words of a message → the name in the answer to look at
    "the sum of all ranks' gradients": "reduce_scatter|all_reduce",
}
ROWS = 2


class LargeOnly(MemoryUse):
    """Count those storages only that have room for a layer's weight."""

    least = 0  # bytes
    room = 0  # the storage in which the transport receives: it is not the answer's

    def now(self) -> dict[str, int]:
        refs = [ref() for ref, _ in self.made.values()]
        sizes = [ref.nbytes() for ref in refs if ref is not None and ref._cdata != self.room]
        return {"large": sum(size for size in sizes if size >= self.least)}


class Forgetful(RingGroup):
    """A transport keeps what it sent last until the next message; here the answer alone counts."""

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
    """A share of one weight must not be as large as the other weight: sizes are within twice."""
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
    shares = [w.view(group.size, -1)[group.rank].clone() for w in whole]
    x, dy = data(group.rank, *sizes)
    least = 8 * min(w.numel() for w in whole)
    rings.trace = trace = Trace(group.rank)
    room = rings.buffer(2, max(w.numel() for w in whole), whole[0])
    with LargeOnly() as use:
        use.least, use.room = least, room.untyped_storage()._cdata
        y, *kept = forward(rings, shares, shapes, x)
        in_forward, left = trace.sent // 8, use.now()["large"] // 8
        first = sum(use.peak.values()) // 8
        # Given away, so that what backward lets go of is gone.
        grads, dx = backward(rings, shares, shapes, kept.pop(), dy)
    found = {"y": y, "dx": dx, "dW0's share": grads[0], "dW1's share": grads[1]}
    return {
        "shares": shares,
        "found": {k: v.detach().clone() for k, v in found.items()},
        "sent": (in_forward, trace.sent // 8 - in_forward),
        "left": left,
        "first": first,
        "peak": sum(use.peak.values()) // 8,
    }


def alone(rank: int, sizes: Sizes) -> dict[str, torch.Tensor]:
    """What one rank's rows give, with whole weights."""
    w0, w1 = (w.requires_grad_() for w in weights(*sizes))
    x, dy = data(rank, *sizes)
    x.requires_grad_()
    y = (x @ w0).relu() @ w1
    y.backward(dy)
    grads = {"dx": x.grad, "dW0's share": w0.grad, "dW1's share": w1.grad}
    return {"y": y.detach()} | {k: g for k, g in grads.items() if g is not None}


def check(forward: Callable[..., Any], backward: Callable[..., Any], *, draw: Draw) -> str:
    known: list[tuple[int, Sizes]] = [(2, (24, 20, 28, 0))]
    for ranks, sizes in chain(known, ((4, drawn(draw)) for _ in range(1))):
        results = on_ranks(run, forward, backward, sizes, ranks=ranks)
        references = [alone(rank, sizes) for rank in range(ranks)]
        for rank, result in enumerate(results):
            check_numbers(rank, ranks, result["found"], references)
            check_shares(rank, ranks, result.pop("shares"), weights(*sizes))
        for rank, result in enumerate(results):
            check_costs(rank, ranks, sizes, **result)
    return (
        "Right: the gradients of one device, each weight gathered for its turn, and never more "
        "than one layer's weight and gradient at once."
    )


def check_numbers(
    rank: int, ranks: int, found: dict[str, torch.Tensor], references: list[dict[str, torch.Tensor]]
) -> None:
    here = f"{ranks} ranks, rank {rank}: "
    for name in ("y", "dx"):
        expect(name, found[name], references[rank][name], {}, 1e-9, here)
    for name in ("dW1's share", "dW0's share"):
        parts = [of_rank[name].reshape(ranks, -1)[rank] for of_rank in references]
        total = sum(parts[1:], parts[0])
        suspects = {
            "That is the sum of all ranks' gradients, not their mean": total,
            f"That is the gradient of rank {rank}'s rows alone, without the other ranks'": parts[
                rank
            ],
            "That is this rank's gradient divided by N: the others' are missing": parts[rank]
            / ranks,
        }
        expect(name, found[name].view(-1), total / ranks, suspects, 1e-9, here)


def check_shares(
    rank: int, ranks: int, shares: list[torch.Tensor], whole: list[torch.Tensor]
) -> None:
    """Raise `Wrong` unless this rank's shares of the weights are what they were."""
    for number, (share, weight) in enumerate(zip(shares, whole, strict=True)):
        if not share.equal(weight.view(ranks, -1)[rank]):
            raise Wrong(
                f"{ranks} ranks: the gradients are right, but rank {rank}'s share of W{number} has "
                "changed. Only the optimizer may write into it"
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
            f"{here}holds {left} elements in large arrays when forward has ended: W0 has {w0}, W1 "
            f"{w1}. At most one layer's weight may be there"
        )
    if first > one:
        raise Wrong(
            f"{here}holds {first} elements in large arrays at once in forward: W0 has {w0}, W1 "
            f"{w1}. Let one weight go before you gather the next"
        )
    if peak > 2 * one:
        raise Wrong(
            f"{here}holds {peak} elements in large arrays at once in backward. A layer's weight "
            f"and its gradient are {2 * one}: finish with one layer, weight and gradient, before "
            "you gather the next"
            + (f"; {left} of these elements came in `kept`, so let go of that, too" if left else "")
        )
    share = (ranks - 1) * (w0 + w1) // ranks
    if sum(sent) > 3 * share:
        raise Wrong(
            f"{here}sends {sent[0]} + {sent[1]} elements in forward + backward, needed are at most "
            f"{share} + {2 * share}: each weight once in forward, each weight and each gradient's "
            f"share once in backward, and of each (N − 1)/N"
        )
    if sum(sent) < 3 * share - (ranks - 1) * w1 // ranks:
        raise Wrong(
            f"{here}sends {sum(sent)} elements only, and the fewest are "
            f"{3 * share - (ranks - 1) * w1 // ranks}: use the group's collectives"
        )
