# says: at once in forward
# W0 is still there when W1 is gathered.
import torch

from playground.exercises.check import check


def gather(group, share, shape):
    """W[s] of each rank → W[shape]."""
    return group.all_gather(share, share.new_empty(group.size * len(share))).view(shape)


def scatter(group, gradient, share):
    """dW[...]{partial over ranks} → mean dW[s]."""
    return group.reduce_scatter(gradient.view(-1), torch.empty_like(share), "avg")


def forward(group, shares, shapes, x):
    """x[b, d] → y[b, o] = relu(x W0[d, f]) W1[f, o]; each weight is there for its turn."""
    w0 = gather(group, shares[0], shapes[0])
    h = (x @ w0).relu()
    w1 = gather(group, shares[1], shapes[1])
    y = h @ w1
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
