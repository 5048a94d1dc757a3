# says: 3 ranks, parts of 1: out\[0\] on rank \d: what rank \d gave is missing
# Each step sends what the rank itself gave, not what has been collected.
import torch

from playground.exercises.check import check


def ring_reduce_scatter(group, x, out):
    parts, n = [part.clone() for part in x.chunk(group.size)], group.size
    after, before = (group.rank + 1) % n, (group.rank - 1) % n
    out.copy_(parts[group.rank])
    incoming = torch.empty_like(out)
    for step in range(1, n):
        group.exchange(parts[(group.rank - step) % n], after, incoming, before)
    out.add_(incoming)


check("ring_reduce_scatter", ring_reduce_scatter)
