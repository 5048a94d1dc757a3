# says: sends \d+ numbers; two sums for each channel are 8
# It sends rows instead of sums of rows.
import torch

from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    rows = torch.zeros(2, count, grad.shape[1], dtype=grad.dtype)
    rows[0, : len(grad)], rows[1, : len(grad)] = grad, grad * normed
    group.all_reduce(rows)
    mean, along = rows.sum(1) / count
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
