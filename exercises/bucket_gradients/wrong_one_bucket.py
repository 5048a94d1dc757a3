# says: puts all gradients into one bucket of \d+ bytes; 160 bytes
# All gradients go into one bucket, as large as the network.
import torch

from playground.exercises.check import check


def bucket_gradients(group, parameters, most):
    buckets = [[]]
    for parameter in reversed(parameters):
        buckets[-1].append(parameter)
    for bucket in buckets:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(piece.view_as(p))


check("bucket_gradients", bucket_gradients)
