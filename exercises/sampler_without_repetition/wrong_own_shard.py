# says: reads the same examples in every epoch, only in another order
# Each rank shuffles within a shard that stays.
import numpy as np

from playground.exercises.check import check


def indices(length, rank, ranks, seed, epoch):
    mine = np.arange(rank, length, ranks)
    return np.random.default_rng([seed, epoch]).permutation(mine).tolist()


check("sampler_without_repetition", indices)
