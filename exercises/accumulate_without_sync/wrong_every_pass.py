# says: sends \d+ bytes, \d.\d times what one average
# Every backward pass communicates.
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches):
    tokens = sum((labels != -100).sum() for _, labels in micro_batches)
    model.group.all_reduce(tokens)
    for x, labels in micro_batches:
        summed = cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
        (summed * model.group.size / tokens).backward()


check("accumulate_without_sync", accumulate)
