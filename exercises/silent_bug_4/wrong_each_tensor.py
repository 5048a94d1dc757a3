# says: each tensor of it limited by a norm of its own
# The norm of each tensor, not of all.
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
        for handle in handles:
            handle.wait()
        for parameter in model.parameters():
            torch.nn.utils.clip_grad_norm_(parameter, max_norm)
        optimizer.step()


check("silent_bug_4", train)
