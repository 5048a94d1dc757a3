# says: all micro-batches count 3 times
# Means are summed.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, steps, lr):
    """Accumulate over micro-batches: from empty gradients, with one average for each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for micro_batches in steps:
        optimizer.zero_grad()
        for x, labels in micro_batches:
            loss = cross_entropy(model(x), labels)
            loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()


check("silent_bug_5", train)
