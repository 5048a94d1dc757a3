"""HSDP's gradients: reduced inside each host per micro-batch, and between hosts once per step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from distributed import Group
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from distributed.two_levels import split_by_host
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal

HINTS = [
    "Which averaging can stay inside the host, and which has to leave it? How many elements does "
    "a rank have to send in each?",
    '`inside.reduce_scatter(gradient, shard, "avg")` gives each rank its shard of the host\'s '
    "mean. A mean is linear, so you can add up several micro-batches before you send anything to "
    "other hosts.",
    "All hosts have the same number of ranks, so the mean of the hosts' means is the mean over "
    "all ranks. In the end, divide by what you haven't divided by yet.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "elements between hosts": "all_reduce",
    "elements inside its host": "all_reduce|all_gather",
    "the mean over this rank's host": "reduce_scatter",
}


class Case(NamedTuple):
    """`hosts` with `per_host` ranks each, and shards of `shard` elements."""

    hosts: int
    per_host: int
    shard: int
    micro_batches: int
    seed: int

    def gradients(self, rank: int) -> list[torch.Tensor]:
        n, seeds = self.per_host * self.shard, range(self.micro_batches)
        return [normal(n, seed=(rank, self.seed, each)) + rank for each in seeds]


CASES = [Case(2, 2, 4, 3, 0), Case(2, 2, 2, 1, 1)]


def drawn(draw: Draw) -> Case:
    """Six ranks, so that S and H differ; H divides a shard."""
    hosts = draw(2, 3)
    return Case(hosts, 6 // hosts, hosts * draw(1, 4), draw(4, 6), draw(2, 10**6))


def run(group: Group, answer: Callable[..., Any], case: Case) -> tuple[Any, int, int]:
    inside, between = (RingGroup(part) for part in split_by_host(group, case.per_host))
    inside.trace, between.trace = Trace(group.rank), Trace(group.rank)
    found = answer(inside, between, case.gradients(group.rank))
    return found, inside.trace.sent // 8, between.trace.sent // 8


def check(average: Callable[..., Any], *, draw: Draw) -> str:
    for case in [*CASES, drawn(draw)]:
        ranks = case.hosts * case.per_host
        results = on_ranks(run, average, case, ranks=ranks)
        for rank, (found, _, _) in enumerate(results):
            check_numbers(case, rank, found)
        for rank, (_, inside, between) in enumerate(results):
            check_costs(case, rank, inside, between)
    return (
        "Right: the mean over all ranks and micro-batches, and each rank sends only its shard to "
        "other hosts, once per step."
    )


def where(case: Case, rank: int) -> str:
    size = f"{case.hosts} hosts with {case.per_host} ranks each"
    batches = f"{case.micro_batches} micro-batch{'es' * (case.micro_batches > 1)}"
    return f"{size}, {batches}, rank {rank}: "


def check_numbers(case: Case, rank: int, found: Any) -> None:
    ranks, host = case.hosts * case.per_host, rank // case.per_host
    each = [torch.stack(case.gradients(r)) for r in range(ranks)]
    of_all = torch.stack(each)  # [rank, micro-batch, element]
    of_host = of_all[host * case.per_host : (host + 1) * case.per_host]
    place = slice(rank % case.per_host * case.shard, (rank % case.per_host + 1) * case.shard)
    right = of_all.mean((0, 1))[place]
    suspects = {
        "That is the sum over all ranks, not the mean": right * ranks,
        "The sum over the hosts isn't divided by their number": right * case.hosts,
        "The sum over a host's ranks isn't divided by their number": right * case.per_host,
        "The sum over the micro-batches isn't divided by their number": right * case.micro_batches,
        "That is the mean over this rank's host: the other hosts' gradients are missing": (
            of_host.mean((0, 1))[place]
        ),
        "That is the last micro-batch only": of_all.mean(0)[-1][place],
        "That is the mean of this rank's own gradients": each[rank].mean(0)[place],
    }
    expect("shard", found, right, suspects, 1e-9, where(case, rank))


def check_costs(case: Case, rank: int, inside: int, between: int) -> None:
    here = f"{where(case, rank)}the mean is right, but the rank sends "
    least = 2 * case.shard * (case.hosts - 1) // case.hosts
    if between > least:
        why = "Send one shard per step"
        if between == case.micro_batches * least:
            why = "Add up the micro-batches' shards first"
        elif between % (case.per_host * least) == 0:
            why = "Reduce inside the host first, so that only a shard is left to send"
        raise Wrong(f"{here}{between} elements between hosts, and {least} are enough. {why}")
    enough = case.micro_batches * (case.per_host - 1) * case.shard
    if inside > enough:
        raise Wrong(
            f"{here}{inside} elements inside its host, and {enough} are enough. Each rank needs "
            "only its own shard of a sum"
        )
