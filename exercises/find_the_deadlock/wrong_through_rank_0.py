# says: rank 0 sends \d+ numbers, not \d+: the program needs no more messages
# Rank 0 collects all arrays and hands them out again.
import torch

from playground.exercises.check import check


def shift_and_sum(group, x):
    shifted = torch.empty_like(x)
    if group.rank > 0:
        group.send(x, 0)
        group.receive(shifted, 0)
        return shifted, None
    arrays = [x.clone() for _ in range(group.size)]
    for other in range(1, group.size):
        group.receive(arrays[other], other)
    for other in range(1, group.size):
        group.send(arrays[other - 1], other)
    return arrays[-1], sum(arrays)


check("find_the_deadlock", shift_and_sum)
