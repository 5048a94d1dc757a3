# says: out\[0\] on rank 0 is the sum of x\[\d+\], which is in part 1
# The parts start one rank too early: part r ends on rank r − 1.
import torch

from playground.exercises.check import check


def ring_reduce_scatter(group, x, out):
    parts, n = x.chunk(group.size), group.size
    after, before = (group.rank + 1) % n, (group.rank - 1) % n
    incoming = torch.empty_like(out)
    for step in range(n - 1):
        group.exchange(parts[(group.rank - step) % n], after, incoming, before)
        parts[(group.rank - step - 1) % n].add_(incoming)
    out.copy_(parts[(group.rank + 1) % n])


check("ring_reduce_scatter", ring_reduce_scatter)
