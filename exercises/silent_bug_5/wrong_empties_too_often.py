# says: micro-batch 0 of rank 0 in step 0 counts not at all
# Every micro-batch forgets the one before.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, steps, lr):
    """Accumulate over micro-batches: from empty gradients, with one average for each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for micro_batches in steps:
        for x, labels in micro_batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), labels) / len(micro_batches)
            loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()


check("silent_bug_5", train)
