# says: rank 0: micro-batch 0 of rank 0 in step 0 counts 2 times
# The ranks do not meet.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, steps, lr):
    """Accumulate over micro-batches: from empty gradients, with one average for each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for micro_batches in steps:
        optimizer.zero_grad()
        for x, labels in micro_batches:
            loss = cross_entropy(model(x), labels) / len(micro_batches)
            loss.backward()
        optimizer.step()


check("silent_bug_5", train)
