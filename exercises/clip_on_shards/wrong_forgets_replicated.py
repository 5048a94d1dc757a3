# says: replicated 0.*as it was: scale it in place
# Only shares are scaled.
import torch

from playground.exercises.check import check


def clip(group, shares, replicated, max_norm):
    """Scale all gradients, in place, so that their norm is at most max_norm; the norm before."""
    square = group.all_reduce(sum_of_squares(shares))  # of shares that no other rank has
    norm = (square + sum_of_squares(replicated)).sqrt()  # every rank has these: once
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in shares:
        gradient *= factor
    return norm


def sum_of_squares(gradients):
    return sum((g.square().sum() for g in gradients), torch.zeros((), dtype=torch.float64))


check("clip_on_shards", clip)
