import torch

from playground.exercises.check import check


def shift_and_sum(group, x):
    """Return the x[n] of the rank before, and on rank 0 also the sum of all x[n]."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    shifted = torch.empty_like(x)
    group.exchange(x, after, shifted, before)  # all send and receive at once

    if group.rank > 0:
        group.send(x, 0)
        return shifted, None
    total, incoming = x.clone(), torch.empty_like(x)
    for other in range(1, group.size):
        total += group.receive(incoming, other)
    return shifted, total


check("find_the_deadlock", shift_and_sum)
