# says: row 8 is in no shard; 2 of 10 rows are lost
# The rest of the division belongs to nobody.
import torch

from playground.exercises.check import check


def shard_rows(n, rank, ranks):
    size = n // ranks
    return size * rank, size * (rank + 1)


def weighted_mean(group, loss, rows):
    total = loss * rows if rows else 0.0
    both = torch.tensor([total, rows], dtype=torch.float64)
    total, rows = group.all_reduce(both).tolist()
    return total / rows


check("shard_rows", shard_rows, weighted_mean)
