# says: on rank 0, .*a row of rank 1 \(which has 6\) not at all
# Nothing is exchanged but the count.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, batches, lr):
    """Train on shares that differ in size: sum, count, and divide once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        count = group.all_reduce(torch.tensor(len(x)))
        loss = cross_entropy(model(x), labels, reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad *= group.size
        optimizer.step()


check("silent_bug_1", train)
