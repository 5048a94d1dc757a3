import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def accumulate(model, micro_batches: list[tuple[torch.Tensor, torch.Tensor]]):
    """dW = (Σ over all tokens of all micro-batches of all ranks of their losses)' / their number.

    model is a DistributedDataParallel: backward averages gradients over the ranks of model.group,
    unless it is under `with model.no_sync():`. micro_batches is a list of (x[b, d], labels[b]);
    a label of -100 is padding and no token. Only the last backward pass may communicate.
    """
    for number, (x, labels) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        losses = cross_entropy(model(x), labels, ignore_index=-100, reduction="none")
    raise NotImplementedError


check("accumulate_without_sync", accumulate)
