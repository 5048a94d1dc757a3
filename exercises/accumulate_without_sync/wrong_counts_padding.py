# says: divided by 72 rows, padding included
# Padding counts as tokens.
import contextlib

import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    tokens = torch.tensor(sum(len(labels) for _, labels in micro_batches))
    model.group.all_reduce(tokens)
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            summed = cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
            (summed * model.group.size / tokens).backward()


check("accumulate_without_sync", accumulate)
