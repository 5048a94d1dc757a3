# says: 10 examples, 4 ranks: nobody reads example \d+, and 2 are left out
# What N does not divide is dropped.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(length)
    order = order[: length - length % ranks]
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
