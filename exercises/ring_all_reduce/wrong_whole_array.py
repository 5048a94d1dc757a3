# says: sends \d+ numbers for \d+; a ring needs \d+
# The whole array goes around the ring, N − 1 times.
from playground.exercises.check import check


def ring_all_reduce(group, x):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling, incoming = x.clone(), x.clone()
    for _ in range(group.size - 1):
        group.exchange(travelling, after, incoming, before)
        travelling.copy_(incoming)
        x.add_(incoming)
    group.exchange(x, after, incoming, before)


check("ring_all_reduce", ring_all_reduce)
