import torch

from playground.exercises.check import check


def ring_reduce_scatter(group, x, out):
    """x[N·s]{partial over ranks} → out[s]: rank r gets part r of the sum. x is spent."""
    parts, n = x.chunk(group.size), group.size
    after, before = (group.rank + 1) % n, (group.rank - 1) % n
    incoming = torch.empty_like(out)
    for step in range(1, n):
        group.exchange(parts[(group.rank - step) % n], after, incoming, before)
        parts[(group.rank - step - 1) % n].add_(incoming)
    out.copy_(parts[group.rank])


check("ring_reduce_scatter", ring_reduce_scatter)
