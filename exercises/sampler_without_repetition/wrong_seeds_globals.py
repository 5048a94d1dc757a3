# says: the global random numbers are seeded
# The order is right, and all other random numbers of all ranks become the same.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    np.random.seed(seed + 1000 * epoch)
    order = np.random.permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
