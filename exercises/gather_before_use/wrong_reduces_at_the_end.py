# says: at once in backward
# Both gradients wait whole until the end.
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
    h = (x @ gather(group, shares[0], shapes[0])).relu()
    y = h @ gather(group, shares[1], shapes[1])
    return y, (x, h)


def backward(group, shares, shapes, kept, dy):
    """dy[b, o] → [dW0[s0], dW1[s1]], dx[b, d], one layer after the other."""
    x, h = kept
    dh = dy @ gather(group, shares[1], shapes[1]).T * (h > 0)
    w0 = gather(group, shares[0], shapes[0])
    dw1 = h.T @ dy
    dx, dw0 = dh @ w0.T, x.T @ dh
    dw1, dw0 = scatter(group, dw1, shares[1]), scatter(group, dw0, shares[0])
    return [dw0, dw1], dx


check("gather_before_use", forward, backward)
