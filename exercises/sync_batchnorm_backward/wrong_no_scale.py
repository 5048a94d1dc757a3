# says: the factor scale is missing
# It forgets to divide by the standard deviation.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    sums = torch.stack([grad.sum(0), (grad * normed).sum(0)])
    group.all_reduce(sums)
    mean, along = sums / count
    return grad - mean - normed * along


check("sync_batchnorm_backward", backward)
