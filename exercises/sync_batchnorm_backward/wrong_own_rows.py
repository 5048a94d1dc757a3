# says: both means are over this rank's own rows
# As if each rank had a BatchNorm of its own.
from playground.exercises.check import check


def backward(group, grad, normed, scale, count):
    mean, along = grad.mean(0), (grad * normed).mean(0)
    return scale * (grad - mean - normed * along)


check("sync_batchnorm_backward", backward)
