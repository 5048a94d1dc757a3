import numpy as np

from playground.exercises.check import check


def indices(length: int, rank: int, ranks: int, seed: int, epoch: int) -> list[int] | np.ndarray:
    """The numbers, among 0 … length − 1, of the examples that this rank reads in this epoch.

    All ranks together read each example once; shares differ by one at most. All examples are
    shuffled again for every epoch and every seed. Ranks send nothing: each finds the order by
    itself.
    """
    raise NotImplementedError


check("sampler_without_repetition", indices)
