"""Send the k largest elements, and keep the rest for the next step: nothing is lost."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import normal, recognise

HINTS = [
    "First add the gradient to the memory. Choose the elements to send from the sum, and "
    "remove them from the memory.",
    "`memory.abs().topk(k).indices` are the indices of the largest by size, so a large "
    "negative number counts, too.",
    "Ranks choose different places, so all-gather k values and k places, and add each rank's "
    "values at its places with `mean.index_add_(0, places, values)`. Divide by N.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "taken with their signs": "topk",
    "places are chosen by the gradient": "topk",
    "must stay at home": "all_reduce",
}
STEPS = 4


def gradient(rank: int, t: int, n: int) -> torch.Tensor:
    return normal(n, seed=(rank, t, n, 3)) ** 3


def run(group: Group, answer: Callable[..., Any], n: int, k: int) -> dict[str, Any]:
    rings, memory = RingGroup(group), torch.zeros(n, dtype=torch.float64)
    means, memories, sent = [], [], []
    for t in range(STEPS):
        rings.trace = trace = Trace(group.rank)
        means.append(answer(rings, gradient(group.rank, t, n), memory, k))
        memories.append(memory.clone())
        sent.append(trace.sent)
    return {"means": means, "memories": memories, "sent": sent}


def simulate(ranks: int, n: int, k: int, kind: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """means[step, n] and memories[step, rank, n], right or with a mistake of this kind."""
    memory = torch.zeros(ranks, n, dtype=torch.float64)
    means, memories = [], []
    for t in range(STEPS):
        g = torch.stack([gradient(rank, t, n) for rank in range(ranks)])
        x = g if kind == "none" else g + memory
        places = (x if kind == "signed" else x.abs()).topk(k, dim=1).indices
        if kind == "gradient":
            places = g.abs().topk(k, dim=1).indices
        sent = torch.zeros_like(x).scatter_(1, places, x.gather(1, places))
        mean = sent.sum(0) / (1 if kind == "sum" else ranks)
        memory = {
            "none": torch.zeros_like(x),
            "newest": g - sent,
            "twice": x.clone(),
            "of the mean": x - mean,
        }.get(kind, x - sent)
        means.append(mean)
        memories.append(memory)
    return torch.stack(means), torch.stack(memories)


MISTAKES = {
    "none": "what was not sent is forgotten: the memory is never added",
    "newest": "the memory keeps what is left of the newest gradient, and forgets what was left "
    "before it",
    "twice": "what was sent stays in the memory, and is sent again",
    "of the mean": "the ranks' mean is taken from the memory. A rank keeps what it did not send "
    "itself",
    "sum": "what the ranks sent is summed, and not averaged",
    "signed": "the largest are taken with their signs, so that large negative elements wait for "
    "ever",
    "gradient": "places are chosen by the gradient, and not by gradient + memory: what waits "
    "never grows large enough",
}


def check(step: Callable[..., Any], *, draw: Draw) -> str:
    drawn = ((draw(2, 4), draw(6, 40), draw(1, 5)) for _ in range(1))
    for ranks, n, k in chain(((2, 12, 3), (3, 20, 2)), drawn):
        results = on_ranks(run, step, n, k, ranks=ranks)
        means, memories = simulate(ranks, n, k)
        wrong = {kind: simulate(ranks, n, k, kind) for kind in MISTAKES}
        for rank, found in enumerate(results):
            for t, mean in enumerate(found["means"]):
                check_step(rank, ranks, t, k, mean, found, means, memories, wrong)
        most = 16 * k * (ranks - 1)
        for rank, found in enumerate(results):
            if max(found["sent"]) > most:
                raise Wrong(
                    f"The values are right, but rank {rank} of {ranks} sends "
                    f"{max(found['sent'])} bytes in a step. {k} elements and {k} positions go to "
                    f"N − 1 ranks: {most} bytes. The rest of the {n} elements must stay at home"
                )
    return (
        f"Right: after {STEPS} steps, what was sent and what is in memory are together all "
        "gradients, and only k elements leave a rank."
    )


def check_step(
    rank: int,
    ranks: int,
    t: int,
    k: int,
    mean: Any,
    found: dict[str, Any],
    means: torch.Tensor,
    memories: torch.Tensor,
    wrong: dict[str, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    n = means.shape[1]
    here = f"{ranks} ranks, k = {k}, step {t}, rank {rank}: "
    if mean is None:
        raise Wrong(f"{here}the function returns nothing, not mean[{n}]")
    mean = torch.as_tensor(mean, dtype=torch.float64)
    if mean.shape != means[t].shape:
        raise Wrong(
            f"{here}the function returns an array of shape {list(mean.shape)}, not mean[{n}]"
        )
    memory = found["memories"][t]
    good = torch.allclose(mean, means[t], rtol=1e-9, atol=1e-12)
    if good and torch.allclose(memory, memories[t, rank], rtol=1e-9, atol=1e-12):
        return
    if not good and torch.allclose(mean, means[t], rtol=1e-5):
        raise Wrong(f"{here}the mean has lost digits: send values in float64, as they come")
    cause = ""
    for kind, words in MISTAKES.items():
        both = torch.cat([wrong[kind][0][t], wrong[kind][1][t, rank]])
        if recognise(torch.cat([mean, memory]), {words: both}, 1e-9):
            cause = f". It looks as if {words}"
            break
    if not good and recognise(mean, {"own": sent_by(rank, t, n, k)}, 1e-9):
        cause = f". That is what rank {rank} sent, without the other ranks"
    if not t and recognise(mean, {"here": at_own_places(rank, ranks, n, k)}, 1e-9):
        cause = (
            f". Values of other ranks are added at rank {rank}'s places. Each rank chooses its own "
            "places, so they must be sent, too"
        )
    place = int(torch.where(torch.isclose(mean, means[t]), 0.0, (mean - means[t]).abs()).argmax())
    if not good:
        raise Wrong(
            f"{here}mean[{place}] is {mean[place]:.6g}, and should be {means[t, place]:.6g}{cause}"
        )
    place = int((memory - memories[t, rank]).abs().argmax())
    raise Wrong(
        f"{here}memory[{place}] is {memory[place]:.6g}, and should be "
        f"{memories[t, rank, place]:.6g}{cause}"
    )


def at_own_places(rank: int, ranks: int, n: int, k: int) -> torch.Tensor:
    """The mean in step 0 if all ranks' values stood at this rank's places."""
    each = [gradient(r, 0, n) for r in range(ranks)]
    places = [g.abs().topk(k).indices for g in each]
    mean = torch.stack([g[at] for g, at in zip(each, places, strict=True)]).mean(0)
    return torch.zeros(n, dtype=torch.float64).index_copy_(0, places[rank], mean)


def sent_by(rank: int, t: int, n: int, k: int) -> torch.Tensor:
    """What one rank alone sends in step t."""
    memory = torch.zeros(n, dtype=torch.float64)
    for s in range(t + 1):
        x = memory + gradient(rank, s, n)
        places = x.abs().topk(k).indices
        sent = torch.zeros_like(x).index_copy_(0, places, x[places])
        memory = x - sent
    return sent
