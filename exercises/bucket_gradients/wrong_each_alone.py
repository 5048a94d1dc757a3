# says: calls all_reduce 7 times, once for each gradient; \d buckets
# One all-reduce for each gradient.
import torch

from playground.exercises.check import check


def bucket_gradients(group, parameters, most):
    buckets = []
    for parameter in reversed(parameters):
        buckets.append([])
        buckets[-1].append(parameter)
    for bucket in buckets:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(piece.view_as(p))


check("bucket_gradients", bucket_gradients)
