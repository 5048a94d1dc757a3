# says: rank 0 reads other examples when it is asked again
# The order comes from the global random numbers.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
