# says: 4 ranks, source 0: .*need 3 rounds .*that is a chain
# Each rank passes the numbers on to the next one.
from playground.exercises.check import check


def tree_broadcast(group, x, source):
    place, n = (group.rank - source) % group.size, group.size
    if place:
        group.receive(x, (group.rank - 1) % n)
    if place < n - 1:
        group.send(x, (group.rank + 1) % n)


check("tree_broadcast", tree_broadcast)
