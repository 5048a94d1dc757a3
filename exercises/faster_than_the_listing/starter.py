import torch

from playground.exercises.check import check


def average(group, gradients):
    """gradients[i][...]{partial over ranks} → their means over the ranks, in place.

    This is the book's listing: an all-reduce for each tensor. It is right, and sends too many
    messages. Yours must send far fewer, and no byte more. The list is the same on every rank; it
    has tensors of float32 and of float64, an empty one, one number, and one with gaps in memory.
    """
    for gradient in gradients:
        group.all_reduce(gradient, "avg")


check("faster_than_the_listing", average)
