import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
