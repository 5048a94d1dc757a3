import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    return n * rank // ranks, n * (rank + 1) // ranks


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    both = torch.tensor([total, rows], dtype=torch.float64)
    total, rows = group.all_reduce(both).tolist()
    return total / rows


check("shard_rows", shard_rows, weighted_mean)
