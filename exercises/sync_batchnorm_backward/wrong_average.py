# says: divided by the ranks, too
# A mean over the ranks, where a sum is needed.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    sums = torch.stack([grad.sum(0), (grad * normed).sum(0)])
    group.all_reduce(sums, op="avg")
    mean, along = sums / count
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
