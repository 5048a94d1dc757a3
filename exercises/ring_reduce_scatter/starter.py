import torch

from playground.exercises.check import check


def ring_reduce_scatter(group, x, out):
    """Of the sum of all ranks' x[N·s], rank r gets part r in out[s]. x may be overwritten.

    Use group.exchange(outgoing, to, incoming, source): each rank sends n(N − 1)/N of its n = N·s
    elements, to the next rank only.
    """
    parts = x.chunk(group.size)  # views: writing into a part writes into x
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    incoming = torch.empty_like(out)
    raise NotImplementedError


check("ring_reduce_scatter", ring_reduce_scatter)
