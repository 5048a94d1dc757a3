import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, steps, lr):
    """Each step has this rank's micro-batches, a list of (x[b, d], labels[b]) of equal sizes.

    A step should be that of one device on all micro-batches of all ranks, and send gradients once.
    The losses fall. There is a bug.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for micro_batches in steps:
        for x, labels in micro_batches:
            loss = cross_entropy(model(x), labels) / len(micro_batches)
            loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()


check("silent_bug_5", train)
