import torch

from playground.exercises.check import check


def average(group, gradients):
    """gradients[i][...]{partial over ranks} → their means over the ranks, in place.

    This is the book's listing, with one all-reduce per tensor. Its results are right, but it sends
    too many messages. Send far fewer, and no more bytes. Every rank's list has the same shapes and
    dtypes: float32 and float64, an empty tensor, a scalar, and a non-contiguous tensor.
    """
    for gradient in gradients:
        group.all_reduce(gradient, "avg")


check("faster_than_the_listing", average)
