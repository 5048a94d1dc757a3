# says: holds \d+ numbers in large arrays when forward has ended
# Both weights stay for backward, as autograd would keep them.
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
    w0, w1 = (gather(group, *each) for each in zip(shares, shapes, strict=True))
    h = (x @ w0).relu()
    return h @ w1, (x, h, w0, w1)


def backward(group, shares, shapes, kept, dy):
    """dy[b, o] → [dW0[s0], dW1[s1]], dx[b, d], one layer after the other."""
    x, h, w0, w1 = kept
    dh = dy @ w1.T * (h > 0)
    dw1 = scatter(group, h.T @ dy, shares[1])
    dx = dh @ w0.T
    dw0 = scatter(group, x.T @ dh, shares[0])
    return [dw0, dw1], dx


check("gather_before_use", forward, backward)
