# says: a row of rank 0 \(which has 2\) 4 times, a row of rank 1 \(which has 6\) 1\.33 times
# Means are summed.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, batches, lr):
    """Train on this rank's share (x[b_r, d], labels[b_r]) of each batch; b_r differs by rank.

    The steps should be those of one device on whole batches. The losses fall. There is a bug.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "sum")
        optimizer.step()


check("silent_bug_1", train)
