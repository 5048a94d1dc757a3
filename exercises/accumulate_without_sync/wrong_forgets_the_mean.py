# says: they are 1/3 of what they should be: the wrapper divides
# The wrapper averages over the ranks, and nothing undoes it.
import contextlib

from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    tokens = sum((labels != -100).sum() for _, labels in micro_batches)
    model.group.all_reduce(tokens)
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            summed = cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
            (summed / tokens).backward()


check("accumulate_without_sync", accumulate)
