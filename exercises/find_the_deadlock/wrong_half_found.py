# says: does not end. Where they stand:\s+rank 0 is done\s+rank 1 waits in barrier
# The first deadlock is gone; rank 0 still never comes to the barrier.
import torch

from playground.exercises.check import check


def shift_and_sum(group, x):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    shifted = torch.empty_like(x)
    group.exchange(x, after, shifted, before)

    if group.rank > 0:
        group.send(x, 0)
        group.barrier()
        return shifted, None
    total, incoming = x.clone(), torch.empty_like(x)
    for other in range(1, group.size):
        total += group.receive(incoming, other)
    return shifted, total


check("find_the_deadlock", shift_and_sum)
