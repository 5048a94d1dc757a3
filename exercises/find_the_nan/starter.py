import torch

from playground.exercises.check import check


def find(group, tensors):
    """(index, rank) of the first tensor that isn't finite, or None if all of them are.

    `tensors` are one rank's results of a step, before any all-reduce, in the order in which they
    were computed. All ranks have equally many. Return the smallest index at which any rank has a
    NaN or an infinity, and the lowest rank that has one at that index. All ranks have to return the
    same answer, and a rank may send at most 64 bytes.
    """
    raise NotImplementedError


check("find_the_nan", find)
