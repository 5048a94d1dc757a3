import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, make_model, batches, lr):
    """Train on this rank's (x[b, d], labels[b]) of each batch, from rank 0's model; the model.

    `make_model(seed)` has a BatchNorm, which normalizes by the rows of its own rank. All ranks'
    models should be equal at the start and at the end. The losses fall. There is a bug.
    """
    model = make_model(seed=group.rank)
    for parameter in model.parameters():
        group.broadcast(parameter.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()
    return model


check("silent_bug_2", train)
