# says: 12 are read: filled up, so that all shares are equal
# It repeats examples until N divides them.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(length)
    order = np.resize(order, -(-length // ranks) * ranks)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
