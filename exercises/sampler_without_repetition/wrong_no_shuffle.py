# says: nothing is shuffled
# The examples are dealt out in their own order.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.arange(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
