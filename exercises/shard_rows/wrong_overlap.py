# says: row 2 is in the shards of rank 0 and of 1
# The rest goes to the first ranks, but the starts do not move.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    size = n // ranks
    return size * rank, size * (rank + 1) + (rank < n % ranks)


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    both = torch.tensor([total, rows], dtype=torch.float64)
    total, rows = group.all_reduce(both).tolist()
    return total / rows


check("shard_rows", shard_rows, weighted_mean)
