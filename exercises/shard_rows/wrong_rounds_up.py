# says: shards of 3, 3, 3, 1 rows
# The size is rounded up, and the last rank gets too little.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    size = -(-n // ranks)
    return min(n, size * rank), min(n, size * (rank + 1))


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    both = torch.tensor([total, rows], dtype=torch.float64)
    total, rows = group.all_reduce(both).tolist()
    return total / rows


check("shard_rows", shard_rows, weighted_mean)
