# says: are still many: \d+ would do
# Two tensors in each message.
import torch

from playground.exercises.check import check


def average(group, gradients):
    """The mean of every gradient over the ranks, in place, with one all-reduce for each dtype."""
    for first in range(0, len(gradients), 2):
        for dtype in (torch.float32, torch.float64):
            alike = [g for g in gradients[first : first + 2] if g.dtype == dtype]
            if alike:
                flat = torch.cat([gradient.reshape(-1) for gradient in alike])
                group.all_reduce(flat, "avg")
                parts = flat.split([gradient.numel() for gradient in alike])
                for gradient, part in zip(alike, parts, strict=True):
                    gradient.copy_(part.view(gradient.shape))


check("faster_than_the_listing", average)
