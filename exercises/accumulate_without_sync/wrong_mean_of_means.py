# says: each micro-batch counts the same, however few tokens
# The mean of each micro-batch, divided by their number: the bug of 2024.
import contextlib

from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            mean = cross_entropy(model(x), labels, ignore_index=-100)
            (mean / len(micro_batches)).backward()


check("accumulate_without_sync", accumulate)
