# says: shards of 2, 2, 2, 4 rows
# The last rank takes what is left over.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    size = n // ranks
    return size * rank, n if rank == ranks - 1 else size * (rank + 1)


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    both = torch.tensor([total, rows], dtype=torch.float64)
    total, rows = group.all_reduce(both).tolist()
    return total / rows


check("shard_rows", shard_rows, weighted_mean)
