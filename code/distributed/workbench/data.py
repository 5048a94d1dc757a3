"""Handwritten digits, and which of them each step trains on."""

from collections.abc import Iterator
from importlib.metadata import distribution

import numpy as np


def digits(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits: x[1797, 64] in [0, 1] and labels[1797] (scikit-learn's copy)."""
    # Straight from scikit-learn's file: to import the package takes every rank a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    return (rows[:, :64] / 16).astype(dtype), rows[:, 64].astype(int)


def batches(examples: int, batch: int, steps: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The rows of each step's batch: a new shuffle for every pass over the data."""
    if not 1 <= batch <= examples:
        raise ValueError(f"batch={batch}: choose 1 to {examples}, the examples there are")
    random = np.random.default_rng(seed)
    rows = np.array([], dtype=int)
    for _ in range(steps):
        if len(rows) < batch:
            rows = random.permutation(examples)
        yield rows[:batch]
        rows = rows[batch:]
