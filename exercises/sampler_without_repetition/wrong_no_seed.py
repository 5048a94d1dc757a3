# says: seeds 5 and 6 give the same order
# Every run has the same order, whatever its seed.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    order = np.random.default_rng(epoch).permutation(length)
    return order[rank::ranks].tolist()


check("sampler_without_repetition", indices)
