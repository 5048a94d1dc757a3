import torch

from playground.exercises.check import check


def average(inside, between, gradients):
    """k gradients g[S·s]{partial over all ranks} → mean g[s] for this rank's shard.

    `gradients` are this rank's gradients of k micro-batches. `inside` is the group of the S ranks
    on this rank's host, which divide each gradient into S shards of s elements. `between` is the
    group of the ranks that have the same shard, one on each of H hosts. The mean is over all ranks
    and all micro-batches.

    Inside the host, a rank may send (S − 1)s elements per micro-batch. Between hosts, it may send
    2s(H − 1)/H elements per step.
    """
    raise NotImplementedError


check("average_under_hsdp", average)
