from playground.exercises.check import check


def tree_broadcast(group, x, source):
    """x[n] of rank `source` → x[n] on every rank, in place, in ⌈log₂ N⌉ rounds."""
    n = group.size
    place = (group.rank - source) % n  # as if the source were rank 0
    bit = 1
    while bit < n and not place & bit:
        bit *= 2  # up to this place's lowest bit
    if place:
        group.receive(x, (place - bit + source) % n)
    while bit > 1:  # the largest part of the tree first
        bit //= 2
        if place + bit < n:
            group.send(x, (place + bit + source) % n)


check("tree_broadcast", tree_broadcast)
