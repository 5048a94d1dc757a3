"""Adam with its states cut into shares: the same weights, N-th of the memory, no byte more."""

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
    "Rank r needs the mean gradient of its own share only: "
    '`group.reduce_scatter(grad, out, "avg")` gives each rank its N-th of the array.',
    "`share = w.chunk(group.size)[group.rank]` is a view: updating it in place changes w. Keep m "
    "and v of len(share) elements in `state`, and the step's number t beside them.",
    "m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², share ← share − lr · m/(1 − β₁ᵗ) / (√(v/(1 − β₂ᵗ)) "
    "+ eps). Then `group.all_gather(share.clone(), w)`.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "the sum of the ranks' gradients": "reduce_scatter|all_reduce",
    "eps inside of the root": "sqrt",
    "begin at zero in each step": "zeros|zeros_like",
    "3 times what is needed|1.5 times what is needed": "all_reduce",
}
STEPS = 3
SETTINGS = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 0.03}  # eps: a sum is not a mean


def gradient(rank: int, t: int, n: int) -> torch.Tensor:
    return 0.1 * (normal(n, seed=(rank, t, 7)) + rank)


def tensors(x: Any) -> Iterator[torch.Tensor]:
    """All tensors in what an answer keeps."""
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
    """One device's Adam, or one that forgets its states, or corrects the bias in another way."""
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
            "That is what the sum of the ranks' gradients gives, not their mean": adam(
                start, summed
            ),
            "That is what states give that begin at zero in each step: keep them in `state`": adam(
                start, means, forgets=True
            ),
            "That is what Adam gives without 1 − βᵗ, which corrects a start from zero": adam(
                start, means, corrects="no"
            ),
            "That is what Adam gives whose t stays 1 in 1 − βᵗ": adam(
                start, means, corrects="first"
            ),
            "That is what Adam gives with eps inside of the root: it stands outside": adam(
                start, means, inside=True
            ),
        }
        for rank, (w, _, _) in enumerate(results):
            parts = [x.chunk(ranks) for x in (w, right, start)]
            for p, (found, expected, before) in enumerate(zip(*parts, strict=True)):
                here = f"After {STEPS} steps on {ranks} ranks, rank {rank}, share {p}: "
                cut = {words: x.chunk(ranks)[p] for words, x in suspects.items()}
                for r in range(ranks):
                    alone = f"That is what the gradient of rank {r} alone gives"
                    cut[alone] = adam(before, [g.chunk(ranks)[p] for g in each[r]])
                    other = f"That is share {p} of the weights, moved by share {r} of the gradient"
                    cut[other] = adam(before, [g.chunk(ranks)[r] for g in means])
                if recognise(found, {"still": before}):
                    if p == rank:
                        raise Wrong(
                            f"{here}these elements are rank {rank}'s to update, and they are what "
                            "they were at the start. Write into w itself, through a view"
                        )
                    raise Wrong(
                        f"{here}w[{p * s}] … w[{p * s + s - 1}] are what they were at the start. "
                        f"Rank {p} updates them, and rank {rank} must get them from it"
                    )
                expect("share", found, expected, cut, 1e-9, here)
        for rank, (_, sent, kept) in enumerate(results):
            if kept > 2 * s + 4:
                raise Wrong(
                    f"The weights are right, but rank {rank} of {ranks} keeps {kept} elements in "
                    f"`state`. A share has {s} of {n} elements, and m and v of it are {2 * s}"
                )
            if kept < 2 * s:
                raise Wrong(
                    f"The weights are right, but `state` of rank {rank} has {kept} elements: m and "
                    f"v of a share are {2 * s}. They are counted only there"
                )
            if sent > 2 * (ranks - 1) * s:
                raise Wrong(
                    f"The weights are right, but rank {rank} of {ranks} sends {sent} elements in a "
                    f"step, {sent / (2 * (ranks - 1) * s):.3g} times what is needed: (N − 1)s "
                    f"for the gradient of its share and (N − 1)s for the weights, "
                    f"{2 * (ranks - 1) * s} in all"
                )
    return (
        "Right: PyTorch's weights, 2s elements of state on each rank, and no byte more than an "
        "all-reduce of the gradient."
    )
