from playground.exercises.check import check


def tree_broadcast(group, x, source):
    """x[n] of rank `source` → x[n] on every rank, in place, in ⌈log₂ N⌉ rounds.

    Use group.send(x, to) and group.receive(x, source). In every round each rank that has the
    numbers may send them to one other. Any number of ranks, any source.
    """
    place = (group.rank - source) % group.size  # as if the source were rank 0
    raise NotImplementedError


check("tree_broadcast", tree_broadcast)
