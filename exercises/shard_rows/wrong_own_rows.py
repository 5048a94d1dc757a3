# says: the sum over all ranks is divided by this rank
# The rows of the other ranks are not added.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    return n * rank // ranks, n * (rank + 1) // ranks


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    total = torch.tensor(total, dtype=torch.float64)
    return group.all_reduce(total).item() / max(rows, 1)


check("shard_rows", shard_rows, weighted_mean)
