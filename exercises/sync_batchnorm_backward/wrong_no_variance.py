# says: the term x̂ · mean\(dx̂ x̂\) is missing
# It forgets that each row is in the variance.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    sums = torch.stack([grad.sum(0), (grad * normed).sum(0)])
    group.all_reduce(sums)
    mean = sums[0] / count
    return scale * (grad - mean)


check("sync_batchnorm_backward", backward)
