"""A batch in several passes: what to divide by, and how often to communicate."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distributed import Group
from distributed.accumulation import IGNORED, MicroBatch, uneven_batches
from distributed.ddp import DistributedDataParallel
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Wrong, compare, on_ranks

HINTS = [
    'Add up the losses of tokens (`reduction="sum"`) and divide by the number of tokens: those of '
    "all micro-batches of all ranks, which an all-reduce of one number tells.",
    "The wrapper averages over the ranks, which divides by N. You want a sum over them: multiply "
    "by N.",
    "`with model.no_sync():` around forward and backward of all micro-batches but the last. The "
    "last backward pass sends what all of them have added up.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "the wrapper divides": "backward",
    "padding included": "len|numel|shape",
    "a mean of means": "cross_entropy",
    "nobody divides by the tokens": "backward",
    "only the last backward pass may": "backward",
}
COUNT = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()


Gradients = dict[str, torch.Tensor]


def gradients(module: nn.Module) -> Gradients:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def run(group: Group, answer: Callable[..., Any]) -> tuple[Gradients, int, int]:
    """The gradients that the answer leaves, what it sent, and what one synchronised pass sends."""
    module = network()
    model = DistributedDataParallel(module, RingGroup(group))
    for _ in range(2):  # buckets are rebuilt after the first time
        model.zero_grad()
        model.group.trace = once = Trace(group.rank)
        model(torch.ones(1, 16, dtype=torch.float64)).sum().backward()
    model.zero_grad()
    model.group.trace = trace = Trace(group.rank)
    answer(model, uneven_batches(group.rank, group.size, COUNT))
    return gradients(module), trace.sent, once.sent


def alone(weigh: Callable[[int, int], float], ranks: int) -> Gradients:
    """Σ over all micro-batches of (sum of losses)' · weigh(rank, number), on one device."""
    module = network()
    for rank in range(ranks):
        for number, (x, labels) in enumerate(uneven_batches(rank, ranks, COUNT)):
            summed = nn.functional.cross_entropy(
                module(x), labels, ignore_index=IGNORED, reduction="sum"
            )
            (summed * weigh(rank, number)).backward()
    return gradients(module)


def tokens(batch: MicroBatch) -> int:
    return int((batch[1] != IGNORED).sum())


def same(a: Gradients, b: Gradients) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], 1e-8, 1e-12) for n in b)


def check(accumulate: Callable[..., Any]) -> str:
    said = ""
    for ranks in (3, 2):
        counts = [[tokens(b) for b in uneven_batches(r, ranks, COUNT)] for r in range(ranks)]
        total, rows = sum(map(sum, counts)), ranks * COUNT * 8
        right = alone(lambda rank, number, t=total: 1 / t, ranks)  # type: ignore[misc]
        mistakes = typical_mistakes(counts, total, ranks, rows)
        results = on_ranks(run, accumulate, ranks=ranks)
        for rank, (found, sent, once) in enumerate(results):
            where = f"{ranks} ranks, {COUNT} micro-batches, {total} tokens: rank {rank} "
            if not found:
                raise Wrong(f"{where}has no gradients: was there a backward pass?")
            if sent < once // 2:
                raise Wrong(
                    f"{where}sends {sent} bytes, and one average of the gradients sends {once}: "
                    "the last backward pass must communicate"
                )
            for mistake, wrong in mistakes.items():
                if same(found, wrong):
                    raise Wrong(f"{where}has other gradients than one device: {mistake}")
            for name, goal in right.items():
                compare(f"the gradient of {name}", found.get(name), goal, 1e-8, f"{where}: ")
            if sent > once + 100 * ranks:  # some room to count the tokens
                raise Wrong(
                    f"{where}has the right gradients, but sends {sent} bytes, {sent / once:.1f} "
                    f"times what one average of the gradients sends ({once}): only the last "
                    "backward pass may communicate"
                )
        said = f"{results[0][1]} bytes from rank 0, for {COUNT} micro-batches on {ranks} ranks"
    return f"Right: the gradients of one device with the whole batch, and {said}."


def typical_mistakes(
    counts: list[list[int]], total: int, ranks: int, rows: int
) -> dict[str, Gradients]:
    """What typical wrong divisions give, by what there is to say about them."""
    weights: dict[str, Callable[[int, int], float]] = {
        "each micro-batch counts the same, however few tokens it has (a mean of means)": (
            lambda r, i: 1 / counts[r][i] / COUNT / ranks
        ),
        "each micro-batch has its own mean, and these are added up: divided by their number, it "
        "would be a mean of means, and that is wrong too": lambda r, i: 1 / counts[r][i] / ranks,
        "each rank divides by its own tokens, and so a rank with few tokens counts as much as one "
        "with many": lambda r, i: 1 / sum(counts[r]) / ranks,
        f"they are 1/{ranks} of what they should be: the wrapper divides by the ranks, too": (
            lambda r, i: 1 / total / ranks
        ),
        f"they are {total} times what they should be: nobody divides by the tokens": (
            lambda r, i: 1.0
        ),
        "they are divided by the ranks, but not by the tokens": lambda r, i: 1 / ranks,
        f"they are divided by {rows} rows, padding included, and not by {total} tokens": (
            lambda r, i: 1 / rows
        ),
        "only the last micro-batch is in them": (lambda r, i: (i == COUNT - 1) / total),
    }
    return {mistake: alone(weigh, ranks) for mistake, weigh in weights.items()}
