"""Adam with sharded states: the same weights, an N-th of the memory, as many bytes as DDP."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal, recognise

HINTS = [
    "A rank updates only its own shard, so it needs the mean gradient of only that shard. Which "
    "half of an all-reduce gives you that?",
    '`group.reduce_scatter(grad, out, "avg")` does. For the next step, keep two averages that are '
    "as long as the shard, and the number of steps, which the bias correction needs.",
    "`shard` is a view, so if you update it in place, w changes, too. After that, only the other "
    "ranks' parts of w are old. To gather them, pass a copy of your shard, because the output "
    "overlaps with the original.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "the sum of the ranks' gradients": "reduce_scatter|all_reduce",
    "eps inside the square root": "sqrt",
    "start from zero in every step": "zeros|zeros_like",
    "3 times as many as|1.5 times as many as": "all_reduce",
}
STEPS = 3
SETTINGS = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 0.03}  # eps: a sum is not a mean


def gradient(rank: int, t: int, n: int) -> torch.Tensor:
    return 0.1 * (normal(n, seed=(rank, t, 7)) + rank)


def tensors(x: Any) -> Iterator[torch.Tensor]:
    """All tensors that an answer keeps."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, torch.optim.Optimizer):
        yield from tensors(dict(x.state))
    elif isinstance(x, dict | list | tuple):
        for value in x.values() if isinstance(x, dict) else x:
            yield from tensors(value)
    elif hasattr(x, "__dict__"):
        yield from tensors(vars(x))


def run(group: Group, answer: Callable[..., Any], n: int) -> tuple[torch.Tensor, int, int]:
    rings, w, state = RingGroup(group), normal(n, seed=(n,)), dict[str, Any]()
    for t in range(STEPS):
        rings.trace = trace = Trace(group.rank)
        answer(rings, w, gradient(group.rank, t, n), state, **SETTINGS)
    kept = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() // 8 for t in tensors(state)}
    kept.pop(w.untyped_storage()._cdata, None)
    return w, trace.sent // 8, sum(kept.values())


def adam(
    w: torch.Tensor,
    gradients: list[torch.Tensor],
    forgets: bool = False,
    corrects: str = "yes",
    inside: bool = False,
) -> torch.Tensor:
    """Adam on one device, or one that forgets its states or corrects the bias differently."""
    lr, beta1, beta2, eps = SETTINGS.values()
    w, m, v = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        if forgets:
            m, v = torch.zeros_like(w), torch.zeros_like(w)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        k = 1 if corrects == "first" or forgets else t
        a, b = (1 - beta1**k, 1 - beta2**k) if corrects != "no" else (1, 1)
        w -= lr * (m / a) / ((v / b + eps).sqrt() if inside else (v / b).sqrt() + eps)
    return w


def torchs(w: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    """PyTorch's Adam on one device."""
    parameter = torch.nn.Parameter(w.clone())
    lr, beta1, beta2, eps = SETTINGS.values()
    optimizer = torch.optim.Adam([parameter], lr=lr, betas=(beta1, beta2), eps=eps)
    for parameter.grad in gradients:
        optimizer.step()
    return parameter.detach()


def check(step: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, s in chain(((2, 5), (3, 4)), ((draw(2, 4), draw(3, 9)) for _ in range(1))):
        n = ranks * s
        results = on_ranks(run, step, n, ranks=ranks)
        start = normal(n, seed=(n,))
        each = [[gradient(rank, t, n) for t in range(STEPS)] for rank in range(ranks)]
        summed = [sum(g[1:], g[0]) for g in zip(*each, strict=True)]
        means = [g / ranks for g in summed]
        right = torchs(start, means)
        suspects = {
            "This is the result with the sum of the ranks' gradients, not their mean": adam(
                start, summed
            ),
            "Here, m and v start from zero in every step: keep them in `state`": adam(
                start, means, forgets=True
            ),
            "This is the result without dividing by 1 − βᵗ, the bias correction": adam(
                start, means, corrects="no"
            ),
            "This is the result if t in 1 − βᵗ stays 1": adam(start, means, corrects="first"),
            "This is the result with eps inside the square root: add it outside": adam(
                start, means, inside=True
            ),
        }
        for rank, (w, _, _) in enumerate(results):
            parts = [x.chunk(ranks) for x in (w, right, start)]
            for p, (found, expected, before) in enumerate(zip(*parts, strict=True)):
                here = f"After {STEPS} steps on {ranks} ranks, rank {rank}, shard {p}: "
                cut = {words: x.chunk(ranks)[p] for words, x in suspects.items()}
                for r in range(ranks):
                    alone = f"This is the result with only rank {r}'s gradient"
                    cut[alone] = adam(before, [g.chunk(ranks)[p] for g in each[r]])
                    other = (
                        f"This is shard {p} of the weights, updated with shard {r} of the gradient"
                    )
                    cut[other] = adam(before, [g.chunk(ranks)[r] for g in means])
                if recognise(found, {"still": before}):
                    if p == rank:
                        raise Wrong(
                            f"{here}rank {rank} has to update these elements, but they haven't "
                            "changed since the start. Write into w itself, through a view"
                        )
                    raise Wrong(
                        f"{here}w[{p * s}] … w[{p * s + s - 1}] haven't changed since the start. "
                        f"Rank {p} updates them, and has to send them to rank {rank}"
                    )
                expect("shard", found, expected, cut, 1e-9, here)
        for rank, (_, sent, kept) in enumerate(results):
            if kept > 2 * s + 4:
                raise Wrong(
                    f"The weights are right, but rank {rank} of {ranks} keeps {kept} elements in "
                    f"`state`. A shard has {s} of {n} elements, so m and v take only {2 * s}"
                )
            if kept < 2 * s:
                raise Wrong(
                    f"The weights are right, but `state` on rank {rank} has {kept} elements, and m "
                    f"and v take {2 * s}. Keep them in `state`, where the check can count them"
                )
            if sent > 2 * (ranks - 1) * s:
                raise Wrong(
                    f"The weights are right, but rank {rank} of {ranks} sends {sent} elements per "
                    f"step, {sent / (2 * (ranks - 1) * s):.3g} times as many as needed: (N − 1)s "
                    f"to reduce the gradient and (N − 1)s to gather the weights make "
                    f"{2 * (ranks - 1) * s}"
                )
    return (
        "Right: the weights match PyTorch's, each rank keeps 2s elements of state, and it sends no "
        "more than an all-reduce of the gradient would."
    )
