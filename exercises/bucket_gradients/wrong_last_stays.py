# says: is still rank 0's alone, and others are averaged: did the last bucket leave
# The bucket that is open at the end never leaves.
import torch

from playground.exercises.check import check


def bucket_gradients(group, parameters, most):
    buckets = [[]]
    for parameter in reversed(parameters):
        if buckets[-1] and sum(p.grad.nbytes for p in buckets[-1]) + parameter.grad.nbytes > most:
            buckets.append([])
        buckets[-1].append(parameter)
    for bucket in buckets[:-1]:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(piece.view_as(p))


check("bucket_gradients", bucket_gradients)
