# says: needs 2 messages, one after the other
# Two all-reduces, where one would do.
from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    mean = group.all_reduce(grad.sum(0)) / count
    along = group.all_reduce((grad * normed).sum(0)) / count
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
