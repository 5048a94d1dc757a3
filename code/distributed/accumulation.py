"""Gradient accumulation: a batch in several passes, and what to divide by.

    dW = Σ over micro-batches and ranks of (sum of losses)' / (number of tokens in all of them)

A mean of means is the mean only if all parts have the same size, and texts don't. So sum first,
count the tokens, and divide once. Only the last pass has to communicate.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script

MicroBatch = tuple[torch.Tensor, torch.Tensor]  # x[b, d], labels[b]; IGNORED doesn't count
IGNORED = -100


class Replica(Protocol):
    """A wrapped module: this book's `DistributedDataParallel`, or any class with these members."""

    group: Group

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    def no_sync(self) -> contextlib.AbstractContextManager[Any]: ...


def accumulate(
    model: Replica, micro_batches: Sequence[MicroBatch], every_pass: bool = False
) -> float:
    """Gradients of the mean loss per token over all micro-batches of all ranks; return the mean.

    Only the last backward pass communicates, unless `every_pass`. ValueError if there is no
    micro-batch. It's also raised on every rank, before any pass, if no label counts.
    """
    if not micro_batches:
        raise ValueError("micro_batches: give one or more")
    tokens = count_tokens(model.group, micro_batches)
    losses = []
    for number, batch in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last or every_pass else model.no_sync():
            loss = share_of_mean(model, batch, tokens)
            loss.backward()
        losses.append(loss.detach().double())
    return model.group.all_reduce(torch.stack(losses).sum(), "avg").item()


def count_tokens(group: Group, micro_batches: Sequence[MicroBatch]) -> int:
    """Number of tokens that count in this step, on all ranks together; ValueError if it's 0."""
    mine = sum(int((labels != IGNORED).sum()) for _, labels in micro_batches)
    tokens = group.all_reduce(torch.tensor(mine, device=group.device)).item()
    if tokens == 0:
        raise ValueError("micro_batches: no label counts on any rank: leave this batch out")
    return int(tokens)


def share_of_mean(model: Replica, batch: MicroBatch, tokens: int) -> torch.Tensor:
    """This micro-batch's part of the mean loss over `tokens` tokens, times the number of ranks."""
    x, labels = batch
    losses = nn.functional.cross_entropy(model(x), labels, ignore_index=IGNORED, reduction="sum")
    # The wrapper will divide by the number of ranks, but this mean needs a sum over them.
    return losses * model.group.size / tokens


def accumulate_means(model: Replica, micro_batches: Sequence[MicroBatch]) -> None:
    """The bug that was found in 2024: a mean per micro-batch, divided by their number."""
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), labels, ignore_index=IGNORED)
            (loss / len(micro_batches)).backward()


def main(ranks: int = 4, passes: int = 4) -> None:
    """Count what is sent with and without no_sync."""
    from distributed.all_reduce import ring_sent

    each = launch(count_bytes, passes, True, ranks=ranks)
    once = launch(count_bytes, passes, False, ranks=ranks)
    print(f"bytes sent by rank 0 for {passes} passes: {each[0]:,}, with no_sync {once[0]:,}")
    gradient = 8 * ring_sent(sum(p.numel() for p in network().parameters()), 0, ranks).elements
    assert each[0] - once[0] == gradient * (passes - 1)


def uneven_batches(rank: int, ranks: int, count: int, rows: int = 8) -> list[MicroBatch]:
    """Micro-batches with very different numbers of tokens that count, like texts."""
    made = []
    for number in range(count):
        generator = torch.Generator().manual_seed(100 * number + rank)
        x = torch.randn(rows, 16, generator=generator, dtype=torch.float64)
        labels = torch.randint(4, (rows,), generator=generator)
        labels[1 + (3 * number + rank) % rows :] = IGNORED  # padding
        made.append((x, labels))
    return made


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()


def count_bytes(group: Group, passes: int, every_pass: bool) -> int:
    """Bytes that this rank sends to accumulate over this number of passes, as counted."""
    from distributed.ddp import DistributedDataParallel
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace

    model = DistributedDataParallel(network(), RingGroup(group))
    batches = uneven_batches(group.rank, group.size, passes)
    accumulate(model, batches, every_pass)  # buckets are rebuilt after the first time
    model.zero_grad()
    model.group.trace = trace = Trace(group.rank)
    accumulate(model, batches, every_pass)
    return trace.sent


if __name__ == "__main__":
    run_script(main)
