# says: divided by the ranks, but not by the tokens
# Sums of losses, and nobody divides by the tokens.
import contextlib

from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            summed = cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
            (summed).backward()


check("accumulate_without_sync", accumulate)
