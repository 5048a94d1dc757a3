# says: is float64, and its mean is off by .*made in float32
# Everything is made float32 first.
import torch

from playground.exercises.check import check


def average(group, gradients):
    """The mean of every gradient over the ranks, in place, with one all-reduce for each dtype."""
    flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    group.all_reduce(flat, "avg")
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))


check("faster_than_the_listing", average)
