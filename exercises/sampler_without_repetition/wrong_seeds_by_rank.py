# says: It must not depend on the rank
# Every rank shuffles by a seed of its own.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng([seed, epoch, rank]).permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
