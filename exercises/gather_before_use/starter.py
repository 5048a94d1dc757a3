import torch

from playground.exercises.check import check


def forward(group, shares, shapes, x):
    """x[b, d] → y[b, o] = relu(x W0[d, f]) W1[f, o], and what backward needs to know.

    `shares` are this rank's W0[d·f/N] and W1[f·o/N], flat; `shapes` are (d, f) and (f, o). In large
    arrays there may be one layer's weight at any time.
    """
    raise NotImplementedError  # return y, kept


def backward(group, shares, shapes, kept, dy):
    """dy[b, o] → [dW0[d·f/N], dW1[f·o/N]], dx[b, d]

        dW[...]{partial over ranks} → mean over ranks, this rank's share, flat

    dx is of this rank's rows. In large arrays there may be one layer's weight and its gradient.
    """
    raise NotImplementedError  # return [dw0_share, dw1_share], dx


check("gather_before_use", forward, backward)
