# says: epochs 0 and 1 have the same order
# set_epoch is forgotten.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng(seed).permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
