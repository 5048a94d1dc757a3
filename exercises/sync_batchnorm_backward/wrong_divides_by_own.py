# says: divided by this rank's own rows
# Sums over all rows, divided by the rows of this rank.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    sums = torch.stack([grad.sum(0), (grad * normed).sum(0)])
    group.all_reduce(sums)
    mean, along = sums / len(grad)
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
