# says: the gradient of rank \d's rows alone
# Each rank takes its share of its own gradient.

from playground.exercises.check import check


def gather(group, share, shape):
    """W[s] of each rank → W[shape]."""
    return group.all_gather(share, share.new_empty(group.size * len(share))).view(shape)


def scatter(group, gradient, share):
    """dW[...]{partial over ranks} → mean dW[s]."""
    return gradient.reshape(group.size, -1)[group.rank]


def forward(group, shares, shapes, x):
    """x[b, d] → y[b, o] = relu(x W0[d, f]) W1[f, o]; each weight is there for its turn."""
    h = (x @ gather(group, shares[0], shapes[0])).relu()
    y = h @ gather(group, shares[1], shapes[1])
    return y, (x, h)


def backward(group, shares, shapes, kept, dy):
    """dy[b, o] → [dW0[s0], dW1[s1]], dx[b, d], one layer after the other."""
    x, h = kept
    dh = dy @ gather(group, shares[1], shapes[1]).T * (h > 0)
    dw1 = scatter(group, h.T @ dy, shares[1])
    dx = dh @ gather(group, shares[0], shapes[0]).T
    dw0 = scatter(group, x.T @ dh, shares[0])
    return [dw0, dw1], dx


check("gather_before_use", forward, backward)
