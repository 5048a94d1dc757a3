from playground.exercises.check import check


def tree_broadcast(group, x, root):
    """x[n] of rank `root` → x[n] on every rank, in place, in ⌈log₂ N⌉ rounds."""
    n = group.size
    position = (group.rank - root) % n  # as if the root were rank 0
    bit = 1
    while bit < n and not position & bit:
        bit *= 2  # up to this position's lowest bit
    if position:
        group.receive(x, (position - bit + root) % n)
    while bit > 1:  # the largest part of the tree first
        bit //= 2
        if position + bit < n:
            group.send(x, (position + bit + root) % n)


check("tree_broadcast", tree_broadcast)
