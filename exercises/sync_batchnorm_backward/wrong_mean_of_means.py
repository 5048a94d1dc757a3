# says: it is the mean of the ranks' means
# The mean of means of different numbers of rows.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    sums = torch.stack([grad.mean(0), (grad * normed).mean(0)])
    group.all_reduce(sums, op="avg")
    mean, along = sums
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
