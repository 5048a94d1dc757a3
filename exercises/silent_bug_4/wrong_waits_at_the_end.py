# says: on rank 1, .*Rank 0 stepped by the gradient of its own rows alone$
# Handles are dropped, and clipping too.
import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, batches, lr, max_norm):
    """Train with clipped gradients: average, wait, clip, step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        handles = [
            group.all_reduce(parameter.grad, "avg", async_op=True)
            for parameter in model.parameters()
        ]
        optimizer.step()


check("silent_bug_4", train)
