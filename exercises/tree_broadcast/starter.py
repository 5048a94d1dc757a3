from playground.exercises.check import check


def tree_broadcast(group, x, root):
    """x[n] of rank `root` → x[n] on every rank, in place, in ⌈log₂ N⌉ rounds.

    Use group.send(x, to) and group.receive(x, source). In every round each rank that has the
    array may send it to one other. Any number of ranks, any root.
    """
    position = (group.rank - root) % group.size  # as if the root were rank 0
    raise NotImplementedError


check("tree_broadcast", tree_broadcast)
