import torch

from playground.exercises.check import check


def average(group, gradients):
    """The mean of every gradient over the ranks, in place, with one all-reduce per dtype."""
    for dtype in (torch.float32, torch.float64):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in alike])
        group.all_reduce(flat, "avg")
        parts = flat.split([gradient.numel() for gradient in alike])
        for gradient, part in zip(alike, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))


check("faster_than_the_listing", average)
