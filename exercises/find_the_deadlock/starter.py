import torch

from playground.exercises.check import check


def shift_and_sum(group, x):
    """Return the x[n] of the rank before, and on rank 0 also the sum of all x[n].

    This program hangs in two places. Find both. It may send n elements from rank 0 and 2n from
    every other rank, by messages.
    """
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    shifted = torch.empty_like(x)
    group.send(x, after)
    group.receive(shifted, before)

    if group.rank > 0:
        group.send(x, 0)
        group.barrier()  # the sum is ready
        return shifted, None
    total, incoming = x.clone(), torch.empty_like(x)
    for other in range(1, group.size):
        total += group.receive(incoming, other)
    return shifted, total


check("find_the_deadlock", shift_and_sum)
