import torch

from playground.exercises.check import check


def adam_step(group, w, grad, state, lr, beta1, beta2, eps):
    """One step of Adam on w[N·s], in place. N divides the length of w.

        grad[N·s]{partial over ranks} → mean g[s] for this rank's shard
        m[s], v[s], w[s] ← Adam's update with g[s]      (torch.optim.Adam is the reference)
        w[s] of each rank → w[N·s], equal on every rank

    `state` is a dict, empty before the first step. Keep in it what this rank needs for the next
    step: at most 2s elements and the step's number.
    """
    shard = w.chunk(group.size)[group.rank]  # a view: writing into it writes into w
    raise NotImplementedError


check("shard_adam", adam_step)
