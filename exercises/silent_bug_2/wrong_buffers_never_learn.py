# says: no rank's rows lead there
# Buffers are kept equal by putting the first ones back.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, make_model, batches, lr):
    """Train replicas whose weights and buffers are equal, from the first step to the last."""
    model = make_model(seed=group.rank)
    for tensor in [*model.parameters(), *model.buffers()]:
        group.broadcast(tensor.data)
    firsts = [buffer.clone() for buffer in model.buffers()]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            group.all_reduce(parameter.grad, "avg")
        optimizer.step()
        for buffer, first in zip(model.buffers(), firsts, strict=True):
            buffer.copy_(first)
    return model


check("silent_bug_2", train)
