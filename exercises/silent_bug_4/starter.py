import torch
from torch.nn.functional import cross_entropy

from playground.exercises.check import check


def train(group, model, batches, lr, max_norm):
    """Train on this rank's (x[b, d], labels[b]) of each batch; the step's gradient is clipped.

    The steps should be those of one device on whole batches. Shares have equal sizes. The losses
    fall. There is a bug.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, labels in batches:
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        handles = [
            group.all_reduce(parameter.grad, "avg", async_op=True)
            for parameter in model.parameters()
        ]
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for handle in handles:
            handle.wait()
        optimizer.step()


check("silent_bug_4", train)
