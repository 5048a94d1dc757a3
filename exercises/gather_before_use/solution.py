import torch

from playground.exercises.check import check


def gather(group, shard, shape):
    """W[s] of each rank → W[shape]."""
    return group.all_gather(shard, shard.new_empty(group.size * len(shard))).view(shape)


def scatter(group, gradient, shard):
    """dW[...]{partial over ranks} → mean dW[s]."""
    return group.reduce_scatter(gradient.view(-1), torch.empty_like(shard), "avg")


def forward(group, shards, shapes, x):
    """x[b, d] → y[b, o] = relu(x W0[d, f]) W1[f, o]. Each weight is freed after its use."""
    h = (x @ gather(group, shards[0], shapes[0])).relu()
    y = h @ gather(group, shards[1], shapes[1])
    return y, (x, h)


def backward(group, shards, shapes, kept, dy):
    """dy[b, o] → [dW0[s0], dW1[s1]], dx[b, d]. The last layer comes first."""
    x, h = kept
    dh = dy @ gather(group, shards[1], shapes[1]).T * (h > 0)
    dw1 = scatter(group, h.T @ dy, shards[1])
    dx = dh @ gather(group, shards[0], shapes[0]).T
    dw0 = scatter(group, x.T @ dh, shards[0])
    return [dw0, dw1], dx


check("gather_before_use", forward, backward)
