# says: 3 ranks: rank \d raised ValueError: to=3
# The tree is that of a power of two: it sends to places that do not exist.
from playground.exercises.check import check


def tree_broadcast(group, x, source):
    n, bit = group.size, 1
    place = (group.rank - source) % n
    while bit < n and not place & bit:
        bit *= 2
    if place:
        group.receive(x, (place - bit + source) % n)
    while bit > 1:
        bit //= 2
        group.send(x, place + bit)


check("tree_broadcast", tree_broadcast)
