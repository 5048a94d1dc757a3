# says: slow GPUs with fast links .*: DDP does not fit.* GB more than there are
# Simple, and too large.
from playground.exercises.check import check


def choose(case):
    """The simplest strategy of those that fit and take at most 1 % longer than the fastest."""
    return "DDP"


check("choose_a_strategy", choose)
