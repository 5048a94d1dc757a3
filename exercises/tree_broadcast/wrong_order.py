# says: need 3 rounds .*most ranks below it must be sent to first
# The right tree, but the smallest part of it is served first.
from playground.exercises.check import check


def tree_broadcast(group, x, source):
    n = group.size
    place = (group.rank - source) % n
    lowest = place & -place or n
    if place:
        group.receive(x, (place - lowest + source) % n)
    bit = 1
    while bit < lowest:
        if place + bit < n:
            group.send(x, (place + bit + source) % n)
        bit *= 2


check("tree_broadcast", tree_broadcast)
