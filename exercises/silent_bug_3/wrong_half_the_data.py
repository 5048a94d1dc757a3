# says: in step 0, ranks 0 and 1 read the same rows
# The steps are fewer now, and the rows still the same.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, data, batch, epochs, lr):
    """Train on batches of all ranks: one order for all of them, and each takes its share."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(data), batch):
            x, labels = data[order[start : start + batch // group.size]]
            loss = cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                group.all_reduce(parameter.grad, "avg")
            optimizer.step()


check("silent_bug_3", train)
