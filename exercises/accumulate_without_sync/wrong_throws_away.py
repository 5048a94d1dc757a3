# says: only the last micro-batch is in them
# Gradients are set to zero before each micro-batch.
import contextlib

from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    tokens = sum((labels != -100).sum() for _, labels in micro_batches)
    model.group.all_reduce(tokens)
    for number, (x, labels) in enumerate(micro_batches):
        model.zero_grad()
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            summed = cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
            (summed * model.group.size / tokens).backward()


check("accumulate_without_sync", accumulate)
