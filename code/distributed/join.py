"""Ranks that run out of data: they take part with zeros until the last one is done.

`for batch in joined(model, batches)` goes on until no rank has a batch left. In each round, the
gradient is the mean over the ranks that still have one.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from distributed import Group, launch
from distributed.ddp import DistributedDataParallel
from distributed.runtime.script import run_script


def joined(model: DistributedDataParallel, batches: Iterable[Any]) -> Iterator[Any]:
    """This rank's batches; run forward and backward on each. In between, help the others.

    A rank that has none left sends zeros and does not step. At the end it gets the weights of one
    that did. PyTorch's `Join` does the same, but divides by all ranks unless told otherwise.
    """
    group, last = model.group, 0
    rest = iter(batches)
    while True:
        batch = next(rest, None)
        have = torch.zeros(group.size, dtype=torch.int64, device=group.device)
        have[group.rank] = batch is not None
        active = group.all_reduce(have).nonzero().flatten().tolist()
        if not active:
            break
        last, model.scale = active[-1], group.size / len(active)
        if batch is None:
            model.take_part()
        else:
            yield batch
    model.scale = 1.0
    for tensor in model.module.state_dict().values():
        group.broadcast(tensor, source=last)


def count_steps(group: Group, lengths: list[int]) -> tuple[int, float]:
    """Fit a line on so many batches per rank; the steps made, the weight at the end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for x in joined(model, torch.ones(lengths[group.rank], 4, 1)):
        optimizer.zero_grad()
        (model(x) - 3 * x).square().mean().backward()
        optimizer.step()
        steps += 1
    return steps, next(model.module.parameters()).item()


def main(ranks: int = 3) -> None:
    """Ranks with more and fewer batches end with the same weights."""
    lengths = [2 + 3 * rank for rank in range(ranks)]
    results = launch(count_steps, lengths, ranks=ranks)
    print("steps of each rank:", [steps for steps, _ in results])
    print("weight of each rank:", [round(weight, 4) for _, weight in results])
    assert len({weight for _, weight in results}) == 1


if __name__ == "__main__":
    run_script(main)
