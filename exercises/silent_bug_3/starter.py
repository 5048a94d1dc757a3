import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, data, batch, epochs, lr):
    """Train on batches of `batch` rows of all ranks together; N divides it, it divides len(data).

    `data[numbers]` reads rows: x[b, d] and labels[b]. Read only what this rank trains on. In each
    epoch every row should be read once. The losses fall, and replicas stay equal. There is a bug.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    mine = batch // group.size
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(data), mine):
            x, labels = data[order[start : start + mine]]
            loss = cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                group.all_reduce(parameter.grad, "avg")
            optimizer.step()


check("silent_bug_3", train)
