# says: each rank counts the same, however many rows.*Look at line \d+: return group.all_reduce
# The mean of the ranks' means.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    return n * rank // ranks, n * (rank + 1) // ranks


def weighted_mean(group, loss, rows):
    return group.all_reduce(torch.tensor(loss), op="avg").item()


check("shard_rows", shard_rows, weighted_mean)
