# says: Before the first step, on rank 1, 0\.\w+.*ranks train different models
# Nothing is broadcast at the start.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, make_model, batches, lr):
    """Train replicas whose weights and buffers are equal, from the first step to the last."""
    model = make_model(seed=group.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()
        for buffer in model.buffers():
            group.broadcast(buffer)
    return model


check("silent_bug_2", train)
