# says: made of the sum over ranks, not of the mean
# The sum is clipped.
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
            group.all_reduce(parameter.grad, "sum", async_op=True)
            for parameter in model.parameters()
        ]
        for handle in handles:
            handle.wait()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


check("silent_bug_4", train)
