# says: After 3 steps, on rank 1, .*ranks train different models
# Gradients are not averaged any more.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, make_model, batches, lr):
    """Train replicas whose weights and buffers are equal, from the first step to the last."""
    model = make_model(seed=group.rank)
    for tensor in [*model.parameters(), *model.buffers()]:
        group.broadcast(tensor.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for buffer in model.buffers():
            group.broadcast(buffer)
    return model


check("silent_bug_2", train)
