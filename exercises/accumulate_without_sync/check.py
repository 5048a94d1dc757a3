"""A batch in several passes: what to divide by, and how often to communicate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group
from distributed.accumulation import IGNORED, MicroBatch, uneven_batches
from distributed.ddp import DistributedDataParallel
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, compare, on_ranks
from playground.exercises.suspects import normal

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
ROWS, CLASSES = 8, 4  # rows of a micro-batch, and what each may be


class Case(NamedTuple):
    """How many micro-batches each rank has, and what they are drawn from; 0 is the chapter's."""

    count: int = 3
    seed: int = 0

    def batches(self, rank: int, ranks: int) -> list[MicroBatch]:
        if not self.seed:
            return uneven_batches(rank, ranks, self.count, ROWS)
        made = []
        for number in range(self.count):
            x = normal(ROWS, 16, seed=(rank, number, self.seed))
            generator = torch.Generator().manual_seed(self.seed + 100 * number + rank)
            labels = torch.randint(CLASSES, (ROWS,), generator=generator)
            counted = int(torch.randint(1, ROWS, (), generator=generator))
            labels[counted:] = IGNORED  # at least one row is padding
            made.append((x, labels))
        return made


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


Gradients = dict[str, torch.Tensor]


def gradients(module: nn.Module) -> Gradients:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def run(group: Group, answer: Callable[..., Any], case: Case) -> tuple[Gradients, int, int]:
    """The gradients that the answer leaves, what it sent, and what one synchronised pass sends."""
    module = network()
    model = DistributedDataParallel(module, RingGroup(group))
    for _ in range(2):  # buckets are rebuilt after the first time
        model.zero_grad()
        model.group.trace = once = Trace(group.rank)
        model(torch.ones(1, 16, dtype=torch.float64)).sum().backward()
    model.zero_grad()
    model.group.trace = trace = Trace(group.rank)
    answer(model, case.batches(group.rank, group.size))
    return gradients(module), trace.sent, once.sent


def alone(weigh: Callable[[int, int], float], case: Case, ranks: int) -> Gradients:
    """Σ over all micro-batches of (sum of losses)' · weigh(rank, number), on one device."""
    module = network()
    for rank in range(ranks):
        for number, (x, labels) in enumerate(case.batches(rank, ranks)):
            summed = nn.functional.cross_entropy(
                module(x), labels, ignore_index=IGNORED, reduction="sum"
            )
            (summed * weigh(rank, number)).backward()
    return gradients(module)


def tokens(batch: MicroBatch) -> int:
    return int((batch[1] != IGNORED).sum())


def same(a: Gradients, b: Gradients) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], 1e-6, 1e-9) for n in b)


def check(accumulate: Callable[..., Any], *, draw: Draw) -> str:
    said = check_case(accumulate, Case(), 3)
    check_case(accumulate, Case(draw(4, 6), draw(1, 10**6)), 2)
    return f"Right: the gradients of one device with the whole batch, and {said}."


def check_case(accumulate: Callable[..., Any], case: Case, ranks: int) -> str:
    """How many bytes are sent, in words; raises `Wrong`."""
    counts = [[tokens(b) for b in case.batches(r, ranks)] for r in range(ranks)]
    total = sum(map(sum, counts))
    right = alone(lambda rank, number: 1 / total, case, ranks)
    mistakes = typical_mistakes(counts, total, case, ranks)
    results = on_ranks(run, accumulate, case, ranks=ranks)
    for rank, (found, sent, once) in enumerate(results):
        where = f"{ranks} ranks, {case.count} micro-batches, {total} tokens: rank {rank} "
        if not found:
            raise Wrong(f"{where}has no gradients: was there a backward pass?")
        if sent < once // 2:
            raise Wrong(
                f"{where}sends {sent} bytes, and one average of the gradients sends {once}: "
                "the last backward pass must communicate"
            )
        if not same(found, right):  # where ranks have equally many tokens, some mistakes are right
            for mistake, wrong in (mistakes | too_early(case, ranks, rank, total)).items():
                if same(found, wrong):
                    raise Wrong(f"{where}has other gradients than one device: {mistake}")
        for name, goal in right.items():
            compare(f"the gradient of {name}", found.get(name), goal, 1e-6, f"{where.strip()}: ")
        if sent > once + 100 * ranks:  # some room to count the tokens
            raise Wrong(
                f"{where}has the right gradients, but sends {sent} bytes, {sent / once:.1f} "
                f"times what one average of the gradients sends ({once}): only the last "
                "backward pass may communicate"
            )
    return f"{results[0][1]} bytes from rank 0, for {case.count} micro-batches on {ranks} ranks"


def too_early(case: Case, ranks: int, own: int, total: int) -> dict[str, Gradients]:
    """What this rank has if another pass than the last communicates."""
    said = "only backward pass {} communicates, so what comes after it stays on its rank"
    found = {}
    for sent in range(case.count - 1):

        def weigh(rank: int, number: int, sent: int = sent) -> float:
            return 1 / total if number <= sent else ranks / total * (rank == own)

        found[said.format(sent)] = alone(weigh, case, ranks)
    return found


def typical_mistakes(
    counts: list[list[int]], total: int, case: Case, ranks: int
) -> dict[str, Gradients]:
    """What typical wrong divisions give, by what there is to say about them."""
    rows = ranks * case.count * ROWS
    weights: dict[str, Callable[[int, int], float]] = {
        "each micro-batch counts the same, however few tokens it has (a mean of means)": (
            lambda r, i: 1 / counts[r][i] / case.count / ranks
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
        "only the last micro-batch is in them": (lambda r, i: (i == case.count - 1) / total),
    }
    return {mistake: alone(weigh, case, ranks) for mistake, weigh in weights.items()}
