import torch

from playground.exercises.check import check


def forward(group, shards, shapes, x):
    """x[b, d] → y[b, o] = relu(x W0[d, f]) W1[f, o], and what backward needs.

    `shards` are this rank's parts of the two weights, W0[d·f/N] and W1[f·o/N], flat. `shapes` are
    (d, f) and (f, o). At most one layer's full weight may be in memory at a time.
    """
    raise NotImplementedError  # return y, kept


def backward(group, shards, shapes, kept, dy):
    """dy[b, o] → [dW0[d·f/N], dW1[f·o/N]], dx[b, d]

        dW[...]{partial over ranks} → mean over ranks, this rank's shard, flat

    dx belongs to this rank's examples. At most one layer's full weight and the full gradient of
    that weight may be in memory at a time.
    """
    raise NotImplementedError  # return [dw0_shard, dw1_shard], dx


check("gather_before_use", forward, backward)
