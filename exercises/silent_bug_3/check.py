"""Every rank draws the same rows: N ranks do the work of one."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from playground.exercises.silent_bug_1.check import moved

from distributed import Group
from distributed.ring_group import RingGroup
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.silent import (
    LR,
    Rows,
    State,
    check_replicas,
    copy_of,
    difference,
    gradient,
    network,
    rows,
)

HINTS = [
    "Print the rows that each rank reads in the first step. How many different ones are there?",
    "All ranks must agree on the order of an epoch, and each takes another share of it: order "
    "depends on the epoch, the share on the rank.",
    "`order = randperm` seeded by seed and epoch; `order[start : start + batch]` is the batch of "
    "all ranks, and `[group.rank :: group.size]` of it is this rank's.",
]
EPOCHS = 2


class Case(NamedTuple):
    """Rows of the data, and of a batch; the learning rate, and what the data are drawn from."""

    length: int = 24
    batch: int = 8
    lr: float = LR
    seed: int = 0


FIRST = Case()


def drawn(draw: Draw, ranks: int) -> Case:
    batch = ranks * draw(2, 5)
    return Case(batch * draw(2, 4), batch, draw(2, 30) / 100, draw(1, 10**6))


class Data:
    """Rows that can be read by their numbers; what was read is remembered."""

    def __init__(self, case: Case = FIRST) -> None:
        self.x, self.labels = rows(case.length, case.seed)
        self.read: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, numbers: Any) -> Rows:
        chosen = torch.arange(len(self))[numbers].view(-1)
        self.read.append(chosen.tolist())
        return self.x[chosen], self.labels[chosen]


def run(group: Group, answer: Callable[..., Any], case: Case) -> tuple[list[list[int]], State]:
    data, model = Data(case), network()
    torch.manual_seed(100 + group.rank)  # global random numbers differ between ranks
    answer(RingGroup(group), model, data, case.batch, EPOCHS, case.lr)
    return in_steps(data.read, case.batch // group.size), copy_of(model)


def in_steps(read: list[list[int]], share: int) -> list[list[int]]:
    """Rows by step, also if they are read one by one, or those of an epoch at once."""
    if len(read) != EPOCHS and any(len(part) != 1 for part in read):
        return read
    rows = [number for part in read for number in part]
    return [rows[start : start + share] for start in range(0, len(rows), share)]


def check(train: Callable[..., Any], *, draw: Draw) -> str:
    for ranks, case in chain([(2, FIRST)], ((3, drawn(draw, 3)) for _ in range(1))):
        results = on_ranks(run, train, case, ranks=ranks)
        check_reads([read for read, _ in results], case)
        check_replicas([state for _, state in results], f"After {EPOCHS} epochs")
        weights = copy_of(network())
        data = Data(case)
        for step in zip(*(read for read, _ in results), strict=True):
            numbers = [number for part in step for number in part]
            weights = moved(weights, gradient(weights, data[numbers]) / case.batch, case.lr)
        if said := difference(results[0][1], weights, "on one device with these batches"):
            raise Wrong(
                f"The rows are right. After {EPOCHS} epochs with lr = {case.lr:g} on rank 0, {said}"
            )
    return "Right: ranks share each batch, all rows come once an epoch, in another order each time."


def check_reads(reads: list[list[list[int]]], case: Case) -> None:
    batch, length = case.batch, case.length
    ranks, steps = len(reads), length // batch
    here = f"{ranks} ranks, batches of {batch} from {length} rows: "
    for rank, read in enumerate(reads):
        if not read:
            raise Wrong(f"{here}rank {rank} reads nothing: read rows by `data[numbers]`")
        if len(read) != len(reads[0]):
            raise Wrong(
                f"{here}rank {rank} takes {len(read)} steps, and rank 0 takes {len(reads[0])}"
            )
    for s, step in enumerate(zip(*reads, strict=True)):
        for rank, part in enumerate(step[1:], start=1):
            if sorted(part) == sorted(step[0]):
                different = len(set().union(*step))
                raise Wrong(
                    f"{here}in step {s}, ranks 0 and {rank} read the same rows, "
                    f"{', '.join(map(str, sorted(part)))}. So that step has learned from "
                    f"{different} different rows, not from {batch}: more ranks do not make a "
                    f"larger batch"
                )
        for rank, part in enumerate(step):
            if len(part) != batch // ranks:
                raise Wrong(
                    f"{here}in step {s}, rank {rank} reads {len(part)} rows. Its share of a batch "
                    f"is {batch // ranks}, or a step is one of {sum(map(len, step))} rows"
                )
    if len(reads[0]) != EPOCHS * steps:
        raise Wrong(
            f"{here}each rank takes {len(reads[0])} steps in {EPOCHS} epochs. With {batch} rows to "
            f"a step they are {EPOCHS * steps}"
        )
    for epoch in range(EPOCHS):
        who = [
            (n, r) for r in range(ranks) for part in epoch_of(reads[r], epoch, steps) for n in part
        ]
        often = Counter(number for number, _ in who)
        never = [number for number in range(length) if number not in often]
        if never:
            twice = next(number for number, count in often.items() if count > 1)
            by = " and ".join(str(rank) for number, rank in who if number == twice)
            raise Wrong(
                f"{here}in epoch {epoch} {len(never)} rows are never read, row {never[0]} among "
                f"them, and others more than once: row {twice} by ranks {by}. All ranks together "
                "should read each row once"
            )
    for rank, read in enumerate(reads):
        if epoch_of(read, 0, steps) == epoch_of(read, 1, steps):
            raise Wrong(
                f"{here}shares are right, but rank {rank} reads the same rows in the same order in "
                "every epoch: batches should not come again"
            )


def epoch_of(read: list[list[int]], epoch: int, steps: int) -> list[list[int]]:
    return read[epoch * steps : (epoch + 1) * steps]
